"""Protocols (prompts, tags, parsing, stages) and the environment that runs their steps."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
