"""Shows a solution in a notebook as the page of its search, without a server."""

from __future__ import annotations

import sys
from html import escape

from reason.problem import Solution
from reason.runs.pages.tree import tree_page
from reason.runs.run import tree_record


def frame_solution(solution: Solution) -> str:
    """Returns HTML: the page of the search, complete in itself, in a frame."""
    page = escape(tree_page(tree_record(solution), None))
    return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0" title="search"></iframe>'


def register_display() -> None:
    """Makes the running notebook show solutions as pages; does nothing outside of IPython."""
    ipython = sys.modules.get("IPython")  # in a notebook it is there already
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(Solution, frame_solution)
