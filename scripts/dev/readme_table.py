"""Write the figures of the README's table of searches from its report: `python scripts/dev/readme_table.py`.

It is the table after the comment `<!-- figures of REPORT, width N -->`. Tokens and accuracy, its last two columns, are
those of the search in the first one; a search that is not in the report stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TABLE = re.compile(r"(<!-- figures of (\S+), width (\d+) -->\n\n)((?:\|.*\n)+)")
Figures = dict[str, tuple[float, float]]


def read_figures(report: Mapping[str, Any], width: int) -> Figures:
    """Returns tokens per problem and accuracy of each search at a width; a vote is one over best-of-N's samples."""
    runs = report.get("runs", report.get("arms", []))  # reports of 0.1.0 have arms
    figures = {run["search"]: (run["tokens"], run["accuracy"]) for run in runs if run["width"] == width}
    for point in report.get("baselines", {}).get("majority vote", []):
        if point["samples"] == width:
            figures["self_consistency"] = point["tokens"], point["accuracy"]
    return figures


def fill_table(text: str) -> str:
    """Returns the README with the figures of the reports that it names."""

    def fill(match: re.Match[str]) -> str:
        start, file, width, table = match.groups()
        report = (ROOT / file).read_text(encoding="utf-8").rpartition("```json")[2].partition("```")[0]
        figures = read_figures(json.loads(report), int(width))
        return start + "".join(_fill_row(line, figures) for line in table.splitlines(keepends=True))

    return TABLE.sub(fill, text)


def _fill_row(line: str, figures: Figures) -> str:
    search = re.match(r"\| `([^`]+)` ", line)
    if search is None or search[1] not in figures:
        return line
    tokens, accuracy = figures[search[1]]
    cells = [*line.split(" | ")[:-2], f"{tokens:,.0f}", f"{accuracy:.3f}".removeprefix("0")]
    return " | ".join(cells) + " |\n"


if __name__ == "__main__":
    README.write_text(fill_table(README.read_text(encoding="utf-8")), encoding="utf-8")
