"""The tree search: nodes, selection, simulation, backup. It does not depend on language models."""

from .chains import sample_chains
from .search import Expansion, search
from .settings import SearchSettings
from .tree import Node, Tree

__all__ = ["Expansion", "Node", "SearchSettings", "Tree", "sample_chains", "search"]
