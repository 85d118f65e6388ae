"""What every room uses: errors, settings, files, locks, HTTP, escaping.

`__init__.pyi` lists what other rooms import from here; a name is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
