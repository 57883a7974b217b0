"""Formats tables of results, for a terminal and for a Markdown report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

_BAR = re.compile(r"(?<!\\)\|")  # one that is not escaped


class ResultTable(NamedTuple):
    """A title, a header and rows of cells; all cells are text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def print_table(self, console: Console) -> None:
        """Prints the table under its title."""
        console.print(f"\n{self.title}", highlight=False)  # a rich table wraps its own title to its width
        table = Table(*self.header)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown_section(self) -> str:
        """Returns a Markdown section: heading, blank line, table.

        >>> ResultTable("Sums", ["a", "b"], [["1", "2"]]).markdown_section()
        '## Sums\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |'
        """
        return f"## {self.title}\n\n{format_markdown(self.header, self.rows)}"


def format_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats cells as a Markdown table.

    >>> format_markdown(["a", "b"], [["1", "2"]])
    '| a | b |\\n|---|---|\\n| 1 | 2 |'
    """
    # a setting in a cell may hold what ends it
    escaped = ([_BAR.sub(r"\\|", cell).replace("\n", " ") for cell in cells] for cells in (header, *rows))
    lines = ["| " + " | ".join(cells) + " |" for cells in escaped]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
