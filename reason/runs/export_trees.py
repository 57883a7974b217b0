"""Exports the saved trees of a run for other programs: GraphML (Gephi, Cytoscape, yEd), DOT (Graphviz), or rollouts
to train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Literal

from reason.grading.grade import GradeValue
from reason.runs.json_files import format_json_line, parse_json, write_atomically
from reason.runs.output_folder import read_regular
from reason.runs.pages.records import TreeRecord
from reason.runs.result import ProblemResult, ResultFile
from reason.runs.run import RESULTS, TREES
from search.tree import SearchTree
from search.tree_export import to_dot, to_rollouts, write_graphml

ExportFormat = Literal["graphml", "dot", "rollouts"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = ("graphml", "dot", "rollouts")
ROLLOUTS = "rollouts.jsonl"
REWARDS: Mapping[GradeValue, float | None] = {"right": 1.0, "wrong": 0.0, "no_answer": 0.0, "ungraded": None}


def export_trees(run_folder: Path, out: Path, export_format: ExportFormat) -> list[Path]:
    """Writes one file per saved tree of a run into `out` and returns the files. *Mutates* the folder `out`.

    In DOT files the path to the chosen solution is bold. Rollouts are one file with a line per tree
    (`search.tree_export.RolloutTree`, with `uid`, `question` and `gold` of the problem); a solution that was graded
    right has reward 1, one that was graded wrong, or has no answer, 0, and one that was not graded none.

    Raises: ValueError if the folder holds no trees, or naming one that is none; OutputError.
    """
    sources = sorted((run_folder / TREES).glob("*.json"))
    if not sources:
        raise ValueError(f"{run_folder / TREES}: there are no trees; give the folder of a run")
    if export_format == "rollouts":
        results = ResultFile(run_folder / RESULTS).read_results()
        file = out / ROLLOUTS
        write_atomically(
            file,
            b"".join(
                _convert(source, lambda record, tree: _format_rollouts(record, tree, results)) for source in sources
            ),
        )
        return [file]
    return [_export_tree(source, out / f"{source.stem}.{export_format}", export_format) for source in sources]


def _export_tree(source: Path, file: Path, export_format: ExportFormat) -> Path:
    write_atomically(file, _convert(source, lambda record, tree: _draw(record, tree, export_format)))
    return file


def _convert(source: Path, convert: Callable[[TreeRecord, SearchTree], bytes]) -> bytes:
    """Returns what `convert` makes of a saved tree. Raises: ValueError naming the file that holds none."""
    try:
        record: TreeRecord = parse_json(read_regular(source))
        tree = SearchTree.from_dict(record)
        _require_nodes(tree, record.get("best"))
        return convert(record, tree)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{source}: not a tree ({type(error).__name__}: {error})") from None


def _draw(record: TreeRecord, tree: SearchTree, export_format: ExportFormat) -> bytes:
    if export_format == "dot":
        return to_dot(tree, record.get("best")).encode(errors="backslashreplace")
    written = BytesIO()
    write_graphml(tree, written)
    return written.getvalue()


def _format_rollouts(record: TreeRecord, tree: SearchTree, results: Mapping[str, ProblemResult]) -> bytes:
    """Returns the line of one tree."""
    result = results.get(record["id"])
    graded = {} if result is None else {sample.node: sample.grade for sample in result.samples}
    rewards = {c["node"]: REWARDS[graded.get(c["node"], "ungraded")] for c in record["candidates"]}
    gold = None if result is None else result.gold
    return format_json_line(
        {"uid": record["id"], "question": record["question"], "gold": gold, **to_rollouts(tree, rewards)}
    )


def _require_nodes(tree: SearchTree, best: int | None) -> None:
    """Raises IndexError for a node that is not there; Python would take a negative index from the end."""
    for i, node in enumerate(tree.nodes):
        if not tree.ROOT - len(tree.contexts) <= node.parent < i:
            raise IndexError(f"node {i} continues {node.parent}")
    if best is not None and not 0 <= best < len(tree):
        raise IndexError(f"best is {best} of {len(tree)} nodes")
