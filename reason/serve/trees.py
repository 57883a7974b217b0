"""The trees of the last searches, to look at while they are kept."""

from __future__ import annotations

import json
import re
import zlib
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reason.problem import Solution
from reason.runs.pages import tree_page
from reason.runs.result_file import write_json, write_whole
from reason.runs.run import settings_of, tree_record
from search.strategy import Strategy

IDENTITY = re.compile(r"[0-9a-f]{32}")


class Trees:
    """The last `keep` trees in memory; with a folder, all of them on disk too, each beside its page."""

    def __init__(self, keep: int, folder: Path | None) -> None:
        self._keep, self._folder = keep, folder
        self._packed: OrderedDict[str, bytes] = OrderedDict()

    def put(self, identity: str, solution: Solution, strategy: Strategy) -> None:
        """Keep a search. *Mutates*: the oldest goes. May take a while; safe in any thread. Raises: OSError."""
        row = {"gold": None, "spent": asdict(solution.spent)}
        record = tree_record(solution) | {"strategy": settings_of(strategy), "row": row}
        self._packed[identity] = zlib.compress(json.dumps(record).encode("ascii"), level=1)
        while len(self._packed) > self._keep:
            self._packed.popitem(last=False)
        if self._folder is not None:
            write_json(self._file(identity), record)
            write_whole(self._folder / "pages" / f"{identity}.html", _page(record).encode())

    def get(self, identity: str) -> dict[str, Any] | None:
        """The tree of a search as plain data (`reason.runs.run.tree_record`); None where it is not kept any more."""
        if not IDENTITY.fullmatch(identity):
            return None
        if packed := self._packed.get(identity):
            return _read(zlib.decompress(packed))
        if self._folder is not None and self._file(identity).is_file():
            return _read(self._file(identity).read_bytes())
        return None

    def page(self, identity: str) -> str | None:
        """The same as a page to look at."""
        record = self.get(identity)
        return None if record is None else _page(record)

    def _file(self, identity: str) -> Path:
        assert self._folder is not None
        return self._folder / "trees" / f"{identity}.json"


def _read(packed: bytes) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(packed)
    return record


def _page(record: dict[str, Any]) -> str:
    return tree_page(record, record["row"])
