from .page import write_page as write_page
from .terminal_text import node_text as node_text
from .terminal_text import pair_text as pair_text
from .terminal_text import tree_text as tree_text
from .trees import pairs_of as pairs_of
from .trees import trees_of as trees_of
