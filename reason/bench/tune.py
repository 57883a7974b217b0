"""Learns a tree template from a run: which places of a large static tree are accepted most often."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from decoding.round import Speculation
from decoding.speculation.controllers.template import FromTemplate
from decoding.speculation.interfaces import Branch, Draft, Drafter, Feedback, Plan, Template
from decoding.speculation.target_logits import Acceptance
from reason.bench.speculation_run import run
from reason.bench.tables import Figures
from reason.bench.workload import Target, Workload


@dataclass(frozen=True)
class Tuned:
    """A template in order of worth, and how often each of its places was accepted."""

    template: Template
    counts: tuple[int, ...]

    def as_dict(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """What a template file holds; `FromTemplate` reads the shape, the rest is for people."""
        shape = {"parents": self.template.parents, "ranks": self.template.ranks}
        return {**shape, "counts": self.counts, "about": dict(about)}

    def levels(self) -> Figures:
        """How many places there are at each depth."""
        depths: list[int] = []
        for parent in self.template.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        counts = [str(depths.count(depth)) for depth in range(1, max(depths) + 1)]
        return Figures("Places by depth", list(map(str, range(1, len(counts) + 1))), [counts])


class PlaceCounter:
    """Implements `Drafter`: another one, whose drafts fill `template`; counts the accepted nodes by their place there.

    A draft does not say where in the template a node is. But of a node's children those are missing that the source
    did not know, which are the last ones: so a child's rank is its place among its siblings. (Independent draws,
    of which several may be one node, break this.)
    """

    def __init__(self, drafter: Drafter, template: Template) -> None:
        self._drafter = drafter
        self._place = {pair: i for i, pair in enumerate(zip(template.parents, template.ranks, strict=True))}
        self.counts = [0] * len(template)

    @property
    def feedback_k(self) -> int:
        return self._drafter.feedback_k

    def propose(self, branches: Sequence[Branch], plan: Plan) -> list[Draft]:
        return self._drafter.propose(branches, plan)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        for seen in feedback:
            place = -1
            for rank in accepted_ranks(seen.draft, seen.accepted):
                place = self._place[place, rank]
                self.counts[place] += 1
        self._drafter.observe(feedback)


def accepted_ranks(draft: Draft, accepted: Sequence[int]) -> list[int]:
    """The rank of each accepted node among its siblings.

    >>> accepted_ranks(Draft((5, 6, 9, 8), (-1, -1, 1, 1)), (1, 3))
    [1, 1]
    """
    return [draft.parents[:node].count(draft.parents[node]) for node in accepted]


def best_places(template: Template, counts: Sequence[int], keep: int) -> Tuned:
    """The `keep` places accepted most often, in that order, parents and elder siblings first; ties as they were.

    >>> best_places(Template((-1, 0, -1), (0, 0, 1)), [9, 2, 4], keep=2)
    Tuned(template=Template(parents=(-1, -1), ranks=(0, 1)), counts=(9, 4))
    """
    place = {pair: i for i, pair in enumerate(zip(template.parents, template.ranks, strict=True))}
    open_places = [(-counts[place[-1, 0]], place[-1, 0])] if place else []
    heapify(open_places)
    new = {-1: -1}
    while open_places and len(new) <= keep:
        _, at = heappop(open_places)
        new[at] = len(new) - 1
        for follower in ((at, 0), (template.parents[at], template.ranks[at] + 1)):
            if follower in place:
                heappush(open_places, (-counts[place[follower]], place[follower]))
    kept = list(new)[1:]
    return Tuned(
        Template(tuple(new[template.parents[i]] for i in kept), tuple(template.ranks[i] for i in kept)),
        tuple(counts[i] for i in kept),
    )


def tune(
    target: Target,
    work: Workload,
    drafter: Drafter,
    rule: Acceptance,
    start: Template,
    *,
    keep: int,
    live: int,
    kv_mib: int = 64,
) -> Tuned:
    """Decodes the workload, filling `start` for every branch in every round. *Mutates* the drafter."""
    counter = PlaceCounter(drafter, start)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "start.json"
        file.write_text(json.dumps(Tuned(start, ()).as_dict({})), encoding="utf-8")
        controller = FromTemplate(str(file))
    run(target, work, Speculation(counter, controller, rule), live=live, nodes=len(start), kv_mib=kv_mib)
    return best_places(start, counter.counts, keep)
