"""Reads the rows of docs/systems.md: one YAML file per system of the literature, and how a user runs it here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from decoding.validation import require_choice

FOLDER = Path(__file__).parent / "rows"
SLOTS = ("drafter", "tree", "acceptance", "controller", "router", "search", "scorer", "memory", "thinking")
BENCHES = ("decoding", "accuracy", "search", "none")
"""What is measured: the speed of a setting that keeps the texts or their distribution, that of one that does not with
its accuracy, the accuracy of a search, or nothing."""

_NOT_DECODERS = ("search", "scorer", "thinking")


@dataclass(frozen=True)
class SystemRow:
    """A published system and its place here.

    name      as in its paper
    paper     authors, year, arXiv number
    slot      of `SLOTS`
    status    `whole`, `part` or `absent`
    lossless  whether the distribution of texts is that of plain decoding; None for what does not decode: a search, a
              score, and a rule for when a thought ends
    settings  what the user types behind `reason solve`; "" for an absent system
    faithful  what is as published
    differs   what is not, and why; for an absent system why it is absent
    bench     of `BENCHES`
    needs     what must be made before, such as a trained head
    common    settings that its runs need and plain runs beside them have too, such as a model
    workloads  names of `measure.WORKLOADS` that it runs on, where these are not all; of a search the one of
               `measure.SEARCH_WORKLOADS`, where that is not the writer
    """

    name: str
    paper: str
    slot: str
    status: str
    lossless: bool | None
    settings: str
    faithful: str = ""
    differs: str = ""
    bench: str = "none"
    needs: str = ""
    common: str = ""
    workloads: tuple[str, ...] = ()

    @property
    def chooses_drafts(self) -> bool:
        """Whether it is a part of speculation; others, such as routers, run with the default drafts."""
        return chooses_drafts(shlex.split(self.settings))

    def __post_init__(self) -> None:
        for key in ("name", "paper"):
            if not getattr(self, key).strip():
                raise ValueError(f"{key} must not be blank")
        require_choice("slot", self.slot, SLOTS)
        require_choice("status", self.status, ("whole", "part", "absent"))
        require_choice("bench", self.bench, BENCHES)
        if (self.status == "absent") == bool(self.settings):
            raise ValueError("settings say how to run a system, and an absent one has none")
        if self.slot in _NOT_DECODERS and self.lossless is not None:
            raise ValueError(f"lossless must be null for slot={self.slot}, which leaves it to the engine to decode")
        if self.status != "whole" and not self.differs:
            raise ValueError(f"differs must say what is missing of a system that is {self.status}")


def chooses_drafts(settings: Sequence[str]) -> bool:
    """Whether settings name a drafter, a controller or an acceptance rule."""
    return any(setting.startswith(("speculation", "controller", "acceptance")) for setting in settings)


def load_rows(folder: Path = FOLDER) -> list[SystemRow]:
    """Returns the rows in the order of their slots and names; a file has one, or a list of them.

    Raises: ValueError naming the file.
    """
    rows = [row for file in sorted(folder.glob("*.yaml")) for row in _read_rows(file)]
    return sorted(rows, key=lambda row: (SLOTS.index(row.slot), row.name.lower()))


def _read_rows(file: Path) -> list[SystemRow]:
    data: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    try:
        return [_make_row(entry) for entry in (data if isinstance(data, list) else [data])]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file.name}: {error}") from error


def _make_row(entry: Any) -> SystemRow:
    known = {field.name for field in fields(SystemRow)}
    if not isinstance(entry, Mapping) or not entry.keys() <= known:
        raise ValueError(f"must have keys of {', '.join(sorted(known))}")
    return SystemRow(**{**entry, "workloads": tuple(str(entry.get("workloads", "")).split())})
