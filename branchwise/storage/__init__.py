"""The call ledger, parquet parts with a manifest, caches and DuckDB views."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
