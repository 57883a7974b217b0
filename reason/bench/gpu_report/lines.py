"""The lines of the report, and the files that hold them: a JSON file and a Markdown file per command.

Both files are written anew after every line, so a crash or the time limit of the machine loses no line.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from reason.runs.tables import format_markdown

Status = Literal["PASS", "FAIL", "figure", "skipped"]
STATUSES: tuple[Status, ...] = ("PASS", "FAIL", "figure", "skipped")
_PREFIX = "gpu_report_"


@dataclass(frozen=True)
class ReportLine:
    """One result: what was measured, its value with the unit, and the bar that it had to reach, if there is one.

    details  figures behind the value as plain data; of an exception its traceback
    """

    part: str
    name: str
    value: str
    status: Status = "figure"
    bar: str = ""
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def cells(self) -> list[str]:
        """The cells of a row of the table."""
        return [self.part, self.status, self.name, self.value, self.bar]

    def format_line(self) -> str:
        """Returns the line as it is printed."""
        bar = f"  (bar: {self.bar})" if self.bar else ""
        return f"{self.part:<3} {self.status:<7} {self.name}: {self.value}{bar}"


HEADER = ("part", "result", "what", "value", "bar")


@dataclass
class ReportFiles:
    """The lines of one command and their files in `folder`; `about` describes the command and the machine."""

    folder: Path
    name: str
    about: dict[str, object]
    lines: list[ReportLine] = field(default_factory=list)

    @property
    def json_file(self) -> Path:
        return self.folder / f"{_PREFIX}{self.name}.json"

    def add_line(self, line: ReportLine) -> None:
        """Prints the line and writes all lines to the files. *Mutates*."""
        self.lines.append(line)
        print(line.format_line(), flush=True)
        self.write_files()

    def write_files(self) -> None:
        """Writes both files; each is complete or as it was before."""
        data = {"about": self.about, "lines": [asdict(line) for line in self.lines]}
        _replace_file(self.json_file, json.dumps(data, indent=1, default=str) + "\n")
        _replace_file(self.json_file.with_suffix(".md"), format_report(self.about, self.lines))


def _replace_file(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f"{file.suffix}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, file)


def format_report(about: Mapping[str, object], lines: Sequence[ReportLine]) -> str:
    """Returns the Markdown of one report: what ran, how many lines have which result, the failed ones, all lines."""
    failed = [line for line in lines if line.status == "FAIL"]
    parts = ["# GPU report", "", *(f"- {key}: {value}" for key, value in about.items()), ""]
    parts += [count_results(lines), ""]
    if failed:
        parts += ["## What fell", "", *(f"- {line.part} {line.name}: {_to_cell(line.value)}" for line in failed), ""]
    parts += ["## All lines", "", format_markdown(HEADER, [[*map(_to_cell, line.cells)] for line in lines]), ""]
    return "\n".join(parts)


def count_results(lines: Sequence[ReportLine]) -> str:
    """Returns how many lines have which result.

    >>> count_results([ReportLine("a0", "numba", "compiles", "PASS"), ReportLine("a0", "cpus", "16")])
    '1 PASS, 0 FAIL, 1 figure, 0 skipped'
    """
    counts = Counter(line.status for line in lines)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES)


def _to_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def merge_reports(folders: Sequence[Path]) -> str:
    """Returns the Markdown of all reports in folders, with every part's lines in the order of the parts.

    Raises: ValueError for a folder without a report; OSError.
    """
    about: dict[str, object] = {}
    lines: list[ReportLine] = []
    for folder in folders:
        files = sorted(folder.glob(f"{_PREFIX}*.json"))
        if not files:
            raise ValueError(f"{folder} has no {_PREFIX}*.json")
        for file in files:
            data = json.loads(file.read_text(encoding="utf-8"))
            name = file.stem.removeprefix(_PREFIX)
            about |= {f"{key} ({name})": value for key, value in data["about"].items()}
            lines += [ReportLine(**line) for line in data["lines"]]
    return format_report(about, sorted(lines, key=lambda line: line.part))
