"""Who takes part in the speculation benchmark: a drafter, its way to draw, its rule, and who deals out nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from decoding.round import Speculation
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.controllers.chain import Chain
from decoding.speculation.controllers.fixed import Fixed
from decoding.speculation.controllers.template import FromTemplate
from decoding.speculation.controllers.throughput import Throughput
from decoding.speculation.drafters.hybrid import Hybrid
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.source import Source
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Controller, DrawKind, RoundCost
from decoding.speculation.target_logits import Acceptance
from reason.engines.draft_model import draft_source

Shape = Literal["best-first", "template", "chain", "throughput"]
"""Who decides where draft nodes go:

best-first   a fixed number per branch on average, wherever in the batch acceptance is likeliest
template     the best places of a tree, learned on training problems with the same drafter and rule
chain        one path of that length
throughput   as many as pay, best-first
"""

ORACLE = "oracle"


@dataclass(frozen=True)
class Contender:
    """A drafter with everything that belongs to it. `ships` names a template that is there and need not be learned."""

    source: Callable[[], Source]
    draw: DrawKind
    rule: Acceptance
    shape: Shape
    ships: str | None = None
    depth: int = 20

    @property
    def learns_template(self) -> bool:
        return self.shape == "template" and self.ships is None

    @property
    def exact(self) -> bool:
        """Whether its output must be that of plain decoding, token for token."""
        return isinstance(self.rule, Coupled)

    def drafter(self) -> TreeDrafter:
        """A fresh one, that knows nothing yet."""
        return TreeDrafter(self.source(), draw=self.draw, depth=self.depth)

    def parts(self, *, nodes: int = 0, template: Path | None = None, costs: Sequence[RoundCost] = ()) -> Speculation:
        """What an engine needs to run it, fresh, with `nodes` draft nodes for each branch where it is told a number."""
        return Speculation(self.drafter(), self._controller(nodes, template, costs), self.rule)

    def _controller(self, nodes: int, template: Path | None, costs: Sequence[RoundCost]) -> Controller:
        if self.shape == "template":
            return FromTemplate(self.ships or str(template), nodes)
        if self.shape == "chain":
            return Chain(nodes)
        return Fixed(nodes) if self.shape == "best-first" else throughput(costs)


def throughput(costs: Sequence[RoundCost]) -> Throughput:
    """The throughput controller as an engine starts it: with the costs of rounds rehearsed on this machine."""
    controller = Throughput()
    controller.pace(costs)
    return controller


published_stand = partial(Stand, max_order=4, mix=False, shared=False)
small_model = partial(draft_source, "bundled:draft", kv_mib=32)


def stand_and_suffix() -> Hybrid:
    return Hybrid((Stand(), SuffixDecoding()))


def stand_and_model() -> Hybrid:
    return Hybrid((Stand(), small_model()))


AT_EQUAL_NODES: dict[str, Contender] = {
    "stand_coupled": Contender(Stand, "coupled", Coupled(), "best-first"),
    "stand_rejection": Contender(Stand, "without_replacement", RecursiveRejection(), "template"),
    "published_rejection": Contender(published_stand, "without_replacement", RecursiveRejection(), "template"),
    "likely_template": Contender(Stand, "likely", PointMass(), "template"),
    "likely_best_first": Contender(Stand, "likely", PointMass(), "best-first"),
    "token_recycling": Contender(TokenRecycling, "likely", PointMass(), "template", "token_recycling"),
    "prompt_lookup": Contender(PromptLookup, "likely", PointMass(), "chain", depth=64),
    "suffix": Contender(SuffixDecoding, "likely", PointMass(), "best-first"),
    "hybrid": Contender(stand_and_suffix, "coupled", Coupled(), "best-first"),
    "draft_model": Contender(small_model, "coupled", Coupled(), "best-first"),
    "stand_draft_model": Contender(stand_and_model, "coupled", Coupled(), "best-first", depth=8),
}
"""Compared at the same number of draft nodes, the published ones with their published rules."""

AT_FULL_SPEED: dict[str, Contender] = {
    "stand": Contender(Stand, "coupled", Coupled(), "throughput"),
    "stand_likely": Contender(Stand, "likely", Coupled(), "throughput"),
    "stand_rejection": Contender(Stand, "without_replacement", RecursiveRejection(), "template"),
    "token_recycling": Contender(TokenRecycling, "likely", Coupled(), "throughput"),
    "prompt_lookup": Contender(PromptLookup, "likely", Coupled(), "throughput"),
    "suffix": Contender(SuffixDecoding, "coupled", Coupled(), "throughput"),
    "hybrid": Contender(stand_and_suffix, "coupled", Coupled(), "throughput"),
    "draft_model": Contender(small_model, "coupled", Coupled(), "throughput"),
    "stand_draft_model": Contender(stand_and_model, "coupled", Coupled(), "throughput", depth=8),
}
"""Compared by speed; whatever is not published with a fixed tree is under the throughput controller."""


def find_tunable(name: str) -> Contender:
    """A contender whose template can be learned. Raises: ValueError naming those that there are."""
    tunable = {name: contender for name, contender in AT_EQUAL_NODES.items() if contender.learns_template}
    if name not in tunable:
        raise ValueError(f"contender must be one of {', '.join(tunable)}; got {name}")
    return tunable[name]
