"""The tree search: nodes, selection, simulation, backup. It does not depend on language models."""

from .chains import sample_chains
from .search import Expansion, search
from .settings import SEARCH_SETTINGS, ChainSettings, Evaluator, SearchSettings, TreeSettings
from .tree import Node, Tree

__all__ = [
    "SEARCH_SETTINGS", "ChainSettings", "Evaluator", "Expansion", "Node", "SearchSettings", "Tree",
    "TreeSettings", "sample_chains", "search",
]  # fmt: skip
