"""Exports the saved trees of a run for other programs: GraphML (Gephi, Cytoscape, yEd) or DOT (Graphviz)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from reason.runs.json_files import write_atomically
from reason.runs.pages.records import TreeRecord
from search.tree import SearchTree
from search.tree_export import to_dot, write_graphml

ExportFormat = Literal["graphml", "dot"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = ("graphml", "dot")


def export_trees(run_folder: Path, out: Path, export_format: ExportFormat) -> list[Path]:
    """Writes one file per saved tree of a run into `out` and returns the files. *Mutates* the folder `out`.

    In DOT files the path to the chosen solution is bold.

    Raises: ValueError if the folder holds no trees, or if one of them cannot be read.
    """
    files = []
    for source, record in _read_records(run_folder):
        tree = SearchTree.from_dict(record)
        file = out / f"{source.stem}.{export_format}"
        out.mkdir(parents=True, exist_ok=True)
        if export_format == "dot":
            write_atomically(file, to_dot(tree, record.get("best")).encode(errors="backslashreplace"))
        else:
            write_graphml(tree, file)
        files.append(file)
    if not files:
        raise ValueError(f"{run_folder / 'trees'}: there are no trees; give the folder of a run")
    return files


def _read_records(run_folder: Path) -> Iterator[tuple[Path, TreeRecord]]:
    for file in sorted((run_folder / "trees").glob("*.json")):
        try:
            record: TreeRecord = json.loads(file.read_text(encoding="utf-8"))
            yield file, record
        except ValueError as error:
            raise ValueError(f"{file}: not a tree ({error})") from None
