"""The same tree shape for every branch in every round, learned or hand-made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar

from decoding.speculation.interfaces import Branch, Feedback, Load, Plan, RoundCost, Template
from decoding.validation import is_count

BUNDLED = ("stand", "token_recycling")


@dataclass(frozen=True)
class FromTemplate:
    """Fills a template, or its best `nodes` nodes (`scripts/bench/tune_tree.py` learns one and writes the file).

    file    a JSON file with `parents` and `ranks`, or the name of one that ships: stand, token_recycling
    nodes   null takes the whole

    Raises: ValueError naming the file and what is wrong with it.
    """

    file: str = "stand"
    nodes: int | None = None
    template: Template = field(init=False, repr=False)
    fills_template: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.nodes is not None and not is_count(self.nodes):
            raise ValueError(f"nodes must be an int >= 0 or null, got {self.nodes!r}")
        object.__setattr__(self, "template", _read(self.file))

    def plan(self, branches: Sequence[Branch], load: Load) -> Plan:
        return even(self.template, len(self.template) if self.nodes is None else self.nodes, branches, load)

    def plain_seconds(self, branches: int, context_tokens: int) -> float:
        return 0.0

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Nothing to learn."""


def even(template: Template, nodes: int, branches: Sequence[Branch], load: Load) -> Plan:
    """The first `nodes` of a template for everybody, fewer where rows are short."""
    fair = min(nodes, len(template), load.spare_rows // max(1, len(branches)))
    return Plan((fair,) * len(branches), fair * len(branches), template=template)


def _read(file: str) -> Template:
    if file in BUNDLED:
        path: Traversable = files("decoding.speculation.controllers").joinpath("templates", f"{file}.json")
    else:
        path = Path(file)
        if not path.is_file():
            raise ValueError(f"file must be a JSON file or one of {', '.join(BUNDLED)}; there is no {file}")
    try:
        shape = json.loads(path.read_text(encoding="utf-8"))
        return Template(tuple(map(int, shape["parents"])), tuple(map(int, shape["ranks"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"file={file} is no tree template ({{'parents': [...], 'ranks': [...]}}): {error}") from error
