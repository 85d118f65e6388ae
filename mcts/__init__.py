"""The tree search: nodes, selection, simulation, backup. It does not depend on language models."""

from mcts.chains import sample_chains
from mcts.search import Expansion, search
from mcts.settings import SearchSettings
from mcts.tree import Node, Tree

__all__ = ["Expansion", "Node", "SearchSettings", "Tree", "sample_chains", "search"]
