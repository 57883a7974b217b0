"""Drafter setups of the speculation benchmark: draft source, draft sampling, acceptance rule and controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from decoding.model.backend import Backend
from decoding.round import Speculation
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.controllers.chain import ChainController
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.template import TemplateController
from decoding.speculation.controllers.throughput import ThroughputController
from decoding.speculation.draft import DraftSampling
from decoding.speculation.drafters.hybrid import HybridSource
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.source import DraftSource
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import AcceptanceRule, Controller, RoundCost
from decoding.warmup_profile import profile_rounds
from reason.engines.draft_model import DraftModelSource

Shape = Literal["best-first", "template", "chain", "throughput"]
"""The controller, which decides where draft nodes go:

best-first   a fixed number per branch on average, wherever in the batch acceptance is likeliest
template     the best nodes of a tree, learned on training problems with the same drafter and rule
chain        one path of that length
throughput   as many as pay, best-first
"""

ORACLE = "oracle"


class MachineCosts(NamedTuple):
    """Costs of rounds on this machine, and the counts of rows up to each of which a round takes nearly as long."""

    rounds: Sequence[RoundCost] = ()
    row_counts: Sequence[int] = ()


NO_COSTS = MachineCosts()


def measure_costs(backend: Backend) -> MachineCosts:
    """Times rounds as an engine does at its start."""
    row_counts: Sequence[int] = getattr(backend, "row_counts", ())
    return MachineCosts(profile_rounds(backend, row_counts=row_counts), row_counts)


@dataclass(frozen=True)
class DrafterSetup:
    """A draft source with sampling, acceptance rule and controller.

    `bundled_template` names a template of the package, which need not be learned.
    """

    source: Callable[[], DraftSource]
    draw: DraftSampling
    rule: AcceptanceRule
    shape: Shape
    bundled_template: str | None = None
    depth: int = 40
    width: int = 8

    @property
    def learns_template(self) -> bool:
        return self.shape == "template" and self.bundled_template is None

    @property
    def is_exact(self) -> bool:
        """True where the output must equal that of plain decoding, token for token."""
        return isinstance(self.rule, Coupled)

    def make_drafter(self) -> TreeDrafter:
        """Returns a new drafter, which has learned nothing."""
        return TreeDrafter(self.source(), draw=self.draw, width=self.width, depth=self.depth)

    def make_speculation(
        self, *, nodes: int = 0, template: Path | None = None, costs: MachineCosts = NO_COSTS
    ) -> Speculation:
        """Returns new parts for an engine; controllers with a fixed number get `nodes` draft nodes per branch."""
        return Speculation(self.make_drafter(), self._make_controller(nodes, template, costs), self.rule)

    def _make_controller(self, nodes: int, template: Path | None, costs: MachineCosts) -> Controller:
        if self.shape == "template":
            return TemplateController(self.bundled_template or str(template), nodes)
        if self.shape == "chain":
            return ChainController(nodes)
        return FixedController(nodes) if self.shape == "best-first" else make_throughput(costs)


def make_throughput(costs: MachineCosts) -> ThroughputController:
    """Returns the throughput controller as an engine starts it: with the round costs measured on this machine."""
    controller = ThroughputController()
    controller.calibrate_cost(*costs)
    return controller


published_stand = partial(Stand, max_order=4, mix=False, prompt=False, rejected=False, shared=False, recent=None)
small_model = partial(DraftModelSource, "bundled:tiny_draft", kv_mib=32)


def stand_and_suffix() -> HybridSource:
    return HybridSource((Stand(), SuffixDecoding()))


def stand_and_model() -> HybridSource:
    return HybridSource((small_model(), Stand()))


AT_EQUAL_NODES: dict[str, DrafterSetup] = {
    "stand_coupled": DrafterSetup(Stand, "coupled", Coupled(), "best-first"),
    "stand_rejection": DrafterSetup(Stand, "without_replacement", RecursiveRejection(), "template"),
    "published_rejection": DrafterSetup(published_stand, "without_replacement", RecursiveRejection(), "template"),
    "likely_template": DrafterSetup(Stand, "likely", PointMass(), "template"),
    "likely_best_first": DrafterSetup(Stand, "likely", PointMass(), "best-first"),
    "token_recycling": DrafterSetup(TokenRecycling, "likely", PointMass(), "template", "token_recycling"),
    "prompt_lookup": DrafterSetup(PromptLookup, "likely", PointMass(), "chain", depth=64),
    "suffix": DrafterSetup(SuffixDecoding, "likely", PointMass(), "best-first"),
    "hybrid": DrafterSetup(stand_and_suffix, "coupled", Coupled(), "best-first"),
    "draft_model": DrafterSetup(small_model, "coupled", Coupled(), "best-first"),
    "stand_draft_model": DrafterSetup(stand_and_model, "coupled", Coupled(), "best-first"),
}
"""Compared at the same number of draft nodes, the published ones with their published rules."""

AT_FULL_SPEED: dict[str, DrafterSetup] = {
    "stand": DrafterSetup(Stand, "coupled", Coupled(), "throughput"),
    "stand_likely": DrafterSetup(Stand, "likely", Coupled(), "throughput"),
    "stand_rejection": DrafterSetup(Stand, "without_replacement", RecursiveRejection(), "template"),
    "token_recycling": DrafterSetup(TokenRecycling, "likely", Coupled(), "throughput"),
    "prompt_lookup": DrafterSetup(PromptLookup, "likely", Coupled(), "throughput"),
    "suffix": DrafterSetup(SuffixDecoding, "coupled", Coupled(), "throughput"),
    "hybrid": DrafterSetup(stand_and_suffix, "coupled", Coupled(), "throughput"),
    "draft_model": DrafterSetup(small_model, "coupled", Coupled(), "throughput", width=4),
    "stand_draft_model": DrafterSetup(stand_and_model, "coupled", Coupled(), "throughput", depth=20, width=4),
}
"""Compared by speed; setups that are not published with a fixed tree have the throughput controller."""


def find_tunable_setup(name: str) -> DrafterSetup:
    """Returns a setup whose template can be learned. Raises: ValueError naming the valid ones."""
    tunable = {name: setup for name, setup in AT_EQUAL_NODES.items() if setup.learns_template}
    if name not in tunable:
        raise ValueError(f"drafter setup must be one of {', '.join(tunable)}; got {name}")
    return tunable[name]
