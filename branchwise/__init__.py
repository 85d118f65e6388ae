"""Branchwise: search trees, process preferences and a search-and-answer policy."""
