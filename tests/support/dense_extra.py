"""Marks tests that need the packages of dense retrieval."""

import importlib.util

import pytest

needs_dense = pytest.mark.skipif(
    importlib.util.find_spec("faiss") is None
    or importlib.util.find_spec("sentence_transformers") is None,
    reason="the extra `dense` is not installed",
)
