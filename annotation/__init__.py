"""From one question to its preference pairs: judge, rollouts, labels, sibling pairs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
