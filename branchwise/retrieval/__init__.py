"""The index: BM25, dense, fusion; a search server and its client."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
