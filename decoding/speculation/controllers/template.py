"""Controller that fills the same tree shape for every branch in every round, learned or hand-made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from decoding.speculation.draft import TreeTemplate
from decoding.speculation.interfaces import BatchLoad, Branch, DraftPlan, Feedback, RoundCost
from decoding.validation import require_count

BUNDLED = ("stand", "token_recycling")


@dataclass(frozen=True)
class TemplateController:
    """Implements `Controller`: fills a template, or its best `nodes` nodes.

    `scripts/bench/tune_tree.py` learns a template and writes the file.

    file    a JSON file with `parents` and `ranks`, or the name of a bundled one: stand, token_recycling
    nodes   maximum nodes; null: all of the template

    Raises: ValueError with the file and the error in it.
    """

    file: str = "stand"
    nodes: int | None = None
    template: TreeTemplate = field(init=False, repr=False)
    uses_template: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("nodes", self.nodes, or_null=True)
        object.__setattr__(self, "template", read_template(self.file))

    def plan_drafts(self, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
        return plan_evenly(self.template, len(self.template) if self.nodes is None else self.nodes, branches, load)

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Does nothing: the plan is fixed."""


def plan_evenly(template: TreeTemplate, nodes: int, branches: Sequence[Branch], load: BatchLoad) -> DraftPlan:
    """Returns a plan with the first `nodes` of a template for every branch, fewer where the batch is nearly full."""
    # Nodes come in order of value, so the first ones are the best template of that size.
    nodes_each = min(nodes, len(template), load.spare_tokens // max(1, len(branches)))
    return DraftPlan((nodes_each,) * len(branches), nodes_each * len(branches), template=template)


def read_template(file: str) -> TreeTemplate:
    """Returns the template of a file, or a bundled one by its name. Raises: ValueError with the file and its error."""
    if file in BUNDLED:
        path = Path(__file__).parent / "templates" / f"{file}.json"
    else:
        path = Path(file)
        if not path.is_file():
            raise ValueError(f"file must be a JSON file or one of {', '.join(BUNDLED)}; there is no {file}")
    try:
        shape = json.loads(path.read_text(encoding="utf-8"))
        return TreeTemplate(tuple(map(int, shape["parents"])), tuple(map(int, shape["ranks"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"file={file} is no tree template ({{'parents': [...], 'ranks': [...]}}): {error}") from error
