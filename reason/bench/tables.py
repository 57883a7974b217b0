"""Tables of results, for a terminal and for a report file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Figures(NamedTuple):
    """A table: all cells are text."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def show(self, console: Console) -> None:
        """Prints it."""
        console.print(f"\n{self.title}", highlight=False)  # a rich table wraps its own title to its width
        table = Table(*self.header)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> list[str]:
        """Its lines in a report.

        >>> Figures("Sums", ["a", "b"], [["1", "2"]]).markdown()
        ['## Sums', '', '| a | b |', '|---|---|', '| 1 | 2 |', '']
        """
        return [f"## {self.title}", "", *markdown(self.header, self.rows).splitlines(), ""]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells as Markdown.

    >>> markdown(["a", "b"], [["1", "2"]])
    '| a | b |\\n|---|---|\\n| 1 | 2 |'
    """
    written = ["| " + " | ".join(line) + " |" for line in (header, *rows)]
    return "\n".join([written[0], "|" + "---|" * len(header), *written[1:]])
