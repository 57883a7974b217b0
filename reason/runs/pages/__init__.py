"""Pages that show what a search did: one for a problem, one for a whole run. Files without a network."""

from reason.runs.pages.index import index_page
from reason.runs.pages.tree import tree_page

__all__ = ["index_page", "tree_page"]
