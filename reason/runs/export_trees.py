"""Exports the saved trees of a run for other programs: GraphML (Gephi, Cytoscape, yEd) or DOT (Graphviz)."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Literal

from reason.runs.json_files import parse_json, write_atomically
from reason.runs.output_folder import read_regular
from reason.runs.pages.records import TreeRecord
from reason.runs.run import TREES
from search.tree import SearchTree
from search.tree_export import to_dot, write_graphml

ExportFormat = Literal["graphml", "dot"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = ("graphml", "dot")


def export_trees(run_folder: Path, out: Path, export_format: ExportFormat) -> list[Path]:
    """Writes one file per saved tree of a run into `out` and returns the files. *Mutates* the folder `out`.

    In DOT files the path to the chosen solution is bold.

    Raises: ValueError if the folder holds no trees, or naming one that is none; OutputError.
    """
    sources = sorted((run_folder / TREES).glob("*.json"))
    if not sources:
        raise ValueError(f"{run_folder / TREES}: there are no trees; give the folder of a run")
    return [_export_tree(source, out / f"{source.stem}.{export_format}", export_format) for source in sources]


def _export_tree(source: Path, file: Path, export_format: ExportFormat) -> Path:
    try:
        record: TreeRecord = parse_json(read_regular(source))
        tree = SearchTree.from_dict(record)
        _require_nodes(tree, record.get("best"))
        if export_format == "dot":
            data = to_dot(tree, record.get("best")).encode(errors="backslashreplace")
        else:
            written = BytesIO()
            write_graphml(tree, written)
            data = written.getvalue()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{source}: not a tree ({type(error).__name__}: {error})") from None
    write_atomically(file, data)
    return file


def _require_nodes(tree: SearchTree, best: int | None) -> None:
    """Raises IndexError for a node that is not there; Python would take a negative index from the end."""
    for i, node in enumerate(tree.nodes):
        if not tree.ROOT <= node.parent < i:
            raise IndexError(f"node {i} continues {node.parent}")
    if best is not None and not 0 <= best < len(tree):
        raise IndexError(f"best is {best} of {len(tree)} nodes")
