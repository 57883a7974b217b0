"""Learns a tree template from a run: the nodes of a large static tree that are accepted most often."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from decoding.round import Speculation
from decoding.speculation.controllers.template import TemplateController
from decoding.speculation.draft import Draft, TreeTemplate
from decoding.speculation.interfaces import AcceptanceRule, Branch, Drafter, DraftPlan, Feedback, reads_hidden
from reason.bench.speculation_run import run_workload
from reason.bench.workload import SpeculationTarget, Workload
from reason.runs.tables import ResultTable

_DEPTH_FACTOR = 0.8  # weight of a first child relative to its parent
_MAX_CHILDREN = 10  # children of a node at most: a context keeps as many tokens


def static_tree(nodes: int = 625, depth: int = 20) -> TreeTemplate:
    """Returns the tree that tuning starts from: the `nodes` nodes of highest weight, in descending order.

    A child of rank r has the weight of its parent times `_DEPTH_FACTOR / (r + 1)^2`. The published tree has 625 nodes
    and depth 20 (arXiv 2506.04708); its shape is not published, this one is ours.

    >>> static_tree(8)
    TreeTemplate(parents=(-1, 0, 1, 2, 3, 4, 5, -1), ranks=(0, 0, 0, 0, 0, 0, 0, 1))
    """
    parents: list[int] = []
    ranks: list[int] = []
    tie = count()  # of equal weights the earlier node first
    # (minus the weight, tie, parent, rank, depth, weight of the parent)
    open_nodes = [(-_DEPTH_FACTOR, next(tie), -1, 0, 1, 1.0)]
    while open_nodes and len(parents) < nodes:
        weight, _, parent, rank, level, above = heappop(open_nodes)
        parents.append(parent)
        ranks.append(rank)
        if rank + 1 < _MAX_CHILDREN:
            heappush(open_nodes, (-above * _DEPTH_FACTOR / (rank + 2) ** 2, next(tie), parent, rank + 1, level, above))
        if level < depth:
            heappush(open_nodes, (weight * _DEPTH_FACTOR, next(tie), len(parents) - 1, 0, level + 1, -weight))
    return TreeTemplate(tuple(parents), tuple(ranks))


@dataclass(frozen=True)
class TunedTemplate:
    """A template, its nodes in descending order of acceptance, and how often each node was accepted."""

    template: TreeTemplate
    counts: tuple[int, ...]

    def to_json(self, about: Mapping[str, object]) -> dict[str, object]:
        """Returns the content of a template file; `TemplateController` reads the shape only."""
        shape = {"parents": self.template.parents, "ranks": self.template.ranks}
        return {**shape, "counts": self.counts, "about": dict(about)}

    def depth_table(self) -> ResultTable:
        """Tabulates the number of nodes at each depth."""
        depths: list[int] = []
        for parent in self.template.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        counts = [str(depths.count(depth)) for depth in range(1, max(depths) + 1)]
        return ResultTable("Template nodes by depth", list(map(str, range(1, len(counts) + 1))), [counts])


class TemplateNodeCounter:
    """Implements `Drafter` by another drafter that fills `template`; counts accepted nodes by their template node.

    A draft does not report the template node of its nodes. But the template nodes that a draft lacks are the last
    children of their parent, so the rank of a child is its position among its siblings. (Independent draws break this,
    because several draws may become one node.)
    """

    def __init__(self, drafter: Drafter, template: TreeTemplate) -> None:
        self._drafter = drafter
        self._node_at = {pair: i for i, pair in enumerate(zip(template.parents, template.ranks, strict=True))}
        self.counts = [0] * len(template)

    @property
    def feedback_k(self) -> int:
        return self._drafter.feedback_k

    @property
    def reads_hidden(self) -> bool:
        return reads_hidden(self._drafter)

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        return self._drafter.propose(branches, plan)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        for each in feedback:
            node = -1  # the root
            for rank in accepted_ranks(each.draft, each.accepted_nodes):
                node = self._node_at[node, rank]
                self.counts[node] += 1
        self._drafter.observe(feedback)


def accepted_ranks(draft: Draft, accepted: Sequence[int]) -> list[int]:
    """Returns the rank of each accepted node among its siblings.

    >>> accepted_ranks(Draft((5, 6, 9, 8), (-1, -1, 1, 1)), (1, 3))
    [1, 1]
    """
    return [draft.parents[:node].count(draft.parents[node]) for node in accepted]


def best_nodes(template: TreeTemplate, counts: Sequence[int], keep: int) -> TunedTemplate:
    """Returns the `keep` nodes accepted most often, in that order, after their parents and earlier siblings.

    Ties keep the order of `template`.


    >>> best_nodes(TreeTemplate((-1, 0, -1), (0, 0, 1)), [9, 2, 4], keep=2)
    TunedTemplate(template=TreeTemplate(parents=(-1, -1), ranks=(0, 1)), counts=(9, 4))
    """
    node_at = {pair: i for i, pair in enumerate(zip(template.parents, template.ranks, strict=True))}
    open_nodes = [(-counts[node_at[-1, 0]], node_at[-1, 0])] if node_at else []
    heapify(open_nodes)
    new_index = {-1: -1}
    while open_nodes and len(new_index) <= keep:
        _, at = heappop(open_nodes)
        new_index[at] = len(new_index) - 1
        for follower in ((at, 0), (template.parents[at], template.ranks[at] + 1)):
            if follower in node_at:
                heappush(open_nodes, (-counts[node_at[follower]], node_at[follower]))
    best = list(new_index)[1:]
    return TunedTemplate(
        TreeTemplate(tuple(new_index[template.parents[i]] for i in best), tuple(template.ranks[i] for i in best)),
        tuple(counts[i] for i in best),
    )


def tune_template(
    target: SpeculationTarget,
    workload: Workload,
    drafter: Drafter,
    rule: AcceptanceRule,
    start: TreeTemplate,
    *,
    keep: int,
    live: int,
    kv_mib: int = 64,
) -> TunedTemplate:
    """Decodes the workload with drafts that fill `start` and keeps its best nodes. *Mutates* the drafter."""
    counter = TemplateNodeCounter(drafter, start)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "start.json"
        file.write_text(json.dumps(TunedTemplate(start, ()).to_json({})), encoding="utf-8")
        controller = TemplateController(str(file))
    run_workload(target, workload, Speculation(counter, controller, rule), live=live, nodes=len(start), kv_mib=kv_mib)
    return best_nodes(start, counter.counts, keep)
