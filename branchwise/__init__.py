"""Branchwise: search trees, process preferences and a search-and-answer policy.

`__init__.pyi` lists the Python interface (docs/python.md); a name is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
