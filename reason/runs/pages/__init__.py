"""Builds pages that show searches: one per problem, one per run, one per report. They work without a network."""

from reason.runs.pages.index import index_page
from reason.runs.pages.tree import tree_page

__all__ = ["index_page", "tree_page"]
