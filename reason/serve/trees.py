"""Stores the trees of recent searches, which the server shows as pages and as plain data."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

from reason.problem import Solution
from reason.runs.json_files import format_json
from reason.runs.output_folder import OutputFolder
from reason.runs.pages import tree_page
from reason.runs.pages.records import TreeRecord
from reason.runs.result import ProblemResult
from reason.runs.run import strategy_settings, tree_record
from search.kv import measure_kv
from search.strategy import Strategy

MAX_QUESTION = 200

TREE_ID = re.compile(r"[0-9a-f]{32}")


class StoredTree(TreeRecord, total=False):
    """A tree record with the usage of its search, in `row` as in a result row."""

    row: dict[str, object]


class TreeSummary(TypedDict):
    """What a stored tree is of. `created` is in seconds since the epoch; the question may be cut."""

    id: str
    question: str
    answer: str | None
    score: float | None
    created: int


class TreeStore:
    """Holds the last `keep` trees in memory; with a folder, all trees on disk too, each with its page."""

    def __init__(self, keep: int, folder: Path | None) -> None:
        self._keep, self._folder = keep, folder
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._summaries: dict[str, TreeSummary] = {}

    def list_summaries(self) -> list[TreeSummary]:
        """Returns what the trees in memory are of, the newest first."""
        return [self._summaries[tree_id] for tree_id in reversed(list(self._packed)) if tree_id in self._summaries]

    def add_tree(self, tree_id: str, solution: Solution, strategy: Strategy) -> None:
        """Stores a search; the oldest one is dropped from memory. Slow; safe in any thread. Raises: OSError.

        *Mutates* the store and the folder.
        """
        record: StoredTree = {
            **tree_record(solution),
            "strategy": strategy_settings(strategy),
            "row": {
                "gold": None,
                "answer": solution.answer,
                "is_trusted": solution.is_trusted,
                "kv": asdict(measure_kv(solution.result)),
                "usage": asdict(solution.usage),
            },
        }
        self._summaries[tree_id] = {
            "id": tree_id,
            "question": solution.problem.question[:MAX_QUESTION],
            "answer": solution.answer,
            "score": solution.score,
            "created": int(time.time()),
        }
        self._packed[tree_id] = zlib.compress(json.dumps(record).encode("ascii"), level=1)
        while len(self._packed) > self._keep:
            oldest, _ = self._packed.popitem(last=False)
            self._summaries.pop(oldest, None)
        if self._folder is not None:
            folder = OutputFolder(self._folder)
            folder.make()
            folder.replace(f"trees/{tree_id}.json", format_json(record))
            folder.replace(f"pages/{tree_id}.html", _render_page(record).encode())

    def load_record(self, tree_id: str) -> StoredTree | None:
        """Returns the tree of a search as plain data (`reason.runs.run.tree_record`); None if it is not stored."""
        if not TREE_ID.fullmatch(tree_id):  # it becomes part of a path
            return None
        if packed := self._packed.get(tree_id):
            return _parse_record(zlib.decompress(packed))
        if self._folder is not None and self._file(tree_id).is_file():
            return _parse_record(self._file(tree_id).read_bytes())
        return None

    def render_page(self, tree_id: str) -> str | None:
        """Returns the tree of a search as an HTML page; None if it is not stored."""
        record = self.load_record(tree_id)
        return None if record is None else _render_page(record)

    def _file(self, tree_id: str) -> Path:
        assert self._folder is not None
        return self._folder / "trees" / f"{tree_id}.json"


def _parse_record(data: bytes) -> StoredTree:
    record: StoredTree = json.loads(data)
    return record


def _render_page(record: StoredTree) -> str:
    return tree_page(record, ProblemResult.from_json({"id": record["id"], **record["row"]}))
