"""Grows draft trees from a source, level by level for all branches at once.

Two ways: fill a template, or take whatever is likeliest to be reached and accepted, wherever in the batch it is.
The second looks at what was drawn, so it is for draws that may be pruned by probability.

Shapes: B branches, F parents of a level, K candidates, W children of each at most, D depth, N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoding.noise import row_keys
from decoding.speculation.compiled import compiled
from decoding.speculation.drafters.best_first import Asked, Grown, Limits, best_first
from decoding.speculation.drafters.calibration import Calibration, calibrated, kind_of
from decoding.speculation.drafters.child_selection import CODES, Sampling, draw, temper
from decoding.speculation.drafters.source import Floats, Ints, Source
from decoding.speculation.interfaces import Branch, DrawKind, Plan, Price, Template

Keys = npt.NDArray[np.int32]

_MASK = 0xFFFFFFFFFFFFFFFF
_FRESH = 0x5851F42D4C957F2D  # drafts must not draw with the noise the target will use, unless they are coupled


class Knobs(NamedTuple):
    """See `tree.TreeDrafter`."""

    draw: DrawKind
    width: int
    depth: int


class Parents(NamedTuple):
    """The nodes about to have children: arrays `[F]`. `node` numbers nodes in the order grown, -1 for an anchor;
    `place` is the node's number in the template, -1 for an anchor."""

    branch: Ints
    node: Ints
    reach: Floats
    place: Ints

    def at(self, rows: Ints) -> Parents:
        return Parents(self.branch[rows], self.node[rows], self.reach[rows], self.place[rows])


class Level(NamedTuple):
    """The nodes of one depth, arrays `[N]`, and the distributions their parents' children were drawn from.

    row, place   of the parent among this level's parents, and of the node in the template
    ids, q       `[F, K]`
    """

    branch: Ints
    parent: Ints
    token: Ints
    reach: Floats
    label: Ints
    row: Ints
    place: Ints
    ids_FK: Ints
    q_FK: Floats


def grow(
    source: Source,
    calibration: Calibration,
    knobs: Knobs,
    branches: Sequence[Branch],
    plan: Plan,
    least_gain: float = -np.inf,
) -> list[Level]:
    """The levels of all drafts, nearest the anchors first; a best-first plan's may hold more nodes than `total`.

    A level that promises fewer accepted tokens than `least_gain`, over what its rows must earn, is the end.
    With `iid` a token drawn twice at one parent is two nodes here.
    """
    child_PW = _children_of(plan.template, knobs.width)
    allowed_B = np.array(plan.nodes)
    deepest_B = _deepest(branches, knobs.depth)
    sampling, noise = Sampling.of(branches), _Noise(branches, knobs)
    state = source.anchors(branches)
    parents = Parents(
        np.arange(len(branches)),
        np.full(len(branches), -1),
        np.ones(len(branches), dtype=np.float32),
        np.full(len(branches), -1),
    )
    floor = -1.0 if plan.template else 0.0 if plan.price is None else plan.price.floor(len(branches))
    earned, floor_B = max(floor, 0.0), np.full(len(branches), floor, dtype=np.float32)
    levels: list[Level] = []
    for depth in range(int(deepest_B.max())):
        rows = _open(parents, allowed_B, deepest_B, depth, floor_B, child_PW)
        if not len(rows):
            break
        if len(rows) < len(parents.branch):
            state, parents = state[rows], parents.at(rows)
        successors = source.successors(state)
        level = Level(
            *_expand(
                CODES[knobs.draw],
                successors.ids_FK,
                successors.logp_FK,
                successors.trust_F,
                parents,
                sampling,
                noise.keys(parents, depth),
                calibration.hits,
                calibration.trials,
                allowed_B,
                child_PW,
                plan.template is not None,
                floor_B,
            )
        )
        if not len(level.token) or float((level.reach - earned).sum()) < least_gain:
            break
        count = sum(len(level.token) for level in levels)
        levels.append(level)
        if plan.template is None:
            branch, reach = (np.concatenate([one[i] for one in levels]) for i in (0, 3))
            _raise_floors(branch, reach, allowed_B, plan.total, floor_B)
        state = source.descend(state[level.row], level.token)
        parents = Parents(level.branch, np.arange(count, count + len(level.token)), level.reach, level.place)
    return levels


@runtime_checkable
class Tabled(Protocol):
    """A source that is an n-gram table, for which there is a faster way."""

    def asked(self, branches: Sequence[Branch]) -> Asked:
        """The table and where the branches stand."""
        ...


def from_table(source: Tabled, calibration: Calibration, knobs: Knobs, branches: Sequence[Branch], plan: Plan) -> Grown:
    """What `grow` would give and the plan keep of it, for draws that may be pruned by probability."""
    price = plan.price or Price(1.0, 0.0)
    limits = Limits(
        np.array(plan.nodes),
        _deepest(branches, knobs.depth),
        plan.total,
        knobs.width,
        max(price.round_seconds, 1e-12),
        price.row_seconds,
    )
    keys_BD2, sampling = _Noise(branches, knobs).keys_BD2, Sampling.of(branches)
    asked, counts = source.asked(branches), (calibration.hits, calibration.trials)
    return Grown(*best_first(asked, limits, CODES[knobs.draw], sampling, keys_BD2, *counts))


def _deepest(branches: Sequence[Branch], depth: int) -> Ints:
    return np.minimum([branch.remaining - 1 for branch in branches], depth)


def _children_of(template: Template | None, width: int) -> Ints:
    """`[P, W]`: the template's children of each place, the anchor's first; a large number for none."""
    if template is None:
        return np.zeros((1, width), dtype=np.int64)
    none = np.iinfo(np.int64).max
    child_PW = np.full((len(template) + 1, max(template.ranks, default=0) + 1), none, dtype=np.int64)
    for node, (parent, rank) in enumerate(zip(template.parents, template.ranks, strict=True)):
        child_PW[parent + 1, rank] = node
    return child_PW


class _Noise:
    """Keys of the noise that children are drawn with."""

    def __init__(self, branches: Sequence[Branch], knobs: Knobs) -> None:
        self._coupled = knobs.draw == "coupled"
        self._seeds = [branch.seed for branch in branches]
        self._ends = [len(branch.tokens) for branch in branches]
        depth = knobs.depth if self._coupled else 0
        seeds = np.repeat(np.array([seed & _MASK for seed in self._seeds], dtype=np.uint64), depth)
        positions = (np.array(self._ends)[:, None] + np.arange(depth)).ravel()
        self.keys_BD2 = row_keys(seeds, positions).reshape(len(branches), depth, 2)

    def keys(self, parents: Parents, depth: int) -> Any:
        """`[F, 2]`: the target's own for the children's position, or fresh for each round and parent."""
        if self._coupled:
            return self.keys_BD2[parents.branch, depth]
        # an anchor's position comes once in a branch's life, a node's number once in a round
        branches = parents.branch.tolist()
        rounds = [(self._ends[branch] << 20) + 1 + node for branch, node in zip(branches, parents.node, strict=True)]
        return row_keys([self._seeds[branch] ^ _FRESH for branch in branches], rounds)


@compiled
def _open(parents: Parents, allowed_B: Ints, deepest_B: Ints, depth: int, floor_B: Floats, child_PW: Ints) -> Ints:
    """The parents that may have children."""
    rows = np.empty(len(parents.branch), dtype=np.int64)
    count = 0
    for f in range(len(parents.branch)):
        branch = parents.branch[f]
        place = parents.place[f] + 1 if len(child_PW) > 1 else 0
        if deepest_B[branch] > depth and parents.reach[f] > floor_B[branch] and child_PW[place, 0] < allowed_B[branch]:
            rows[count] = f
            count += 1
    return rows[:count]


@compiled
def _raise_floors(branch_N: Ints, reach_N: Floats, allowed_B: Ints, total: int, floor_B: Floats) -> None:
    """No node below a branch's floor can be among the branch's best `allowed`, or among the best `total` of all."""
    kept = np.ones(len(reach_N), dtype=np.bool_)
    for b in range(len(allowed_B)):
        if 0 < allowed_B[b] < total:
            mine = branch_N == b
            over = mine.sum() - allowed_B[b]
            if over > 0:
                floor_B[b] = max(floor_B[b], np.partition(reach_N[mine], over)[over])
                kept &= ~mine | (reach_N >= floor_B[b])
    over = kept.sum() - total
    if over > 0:
        floor_B[:] = np.maximum(floor_B, np.partition(reach_N[kept], over)[over])


@compiled
def _expand(
    kind: int,
    ids_FK: Ints,
    logp_FK: Floats,
    trust_F: Ints,
    parents: Parents,
    sampling: Sampling,
    keys_F2: Keys,
    hits: npt.NDArray[np.float64],
    trials: npt.NDArray[np.float64],
    allowed_B: Ints,
    child_PW: Ints,
    filling: bool,
    floor_B: Floats,
) -> tuple[Ints, Ints, Ints, Floats, Ints, Ints, Ints, Ints, Floats]:
    """Draws the children of every parent; keeps those of the template, or those likelier than their branch's floor."""
    contexts, candidates = ids_FK.shape
    width = child_PW.shape[1]
    most = contexts * width
    branch, node, token = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    label, row, place = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    reach = np.empty(most, dtype=np.float32)
    q_FK = np.zeros((contexts, candidates), dtype=np.float32)
    ids_W, chance_W = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.float32)
    n = 0
    for f in range(contexts):
        b = parents.branch[f]
        temperature = sampling.temperature_B[b]
        kept = temper(logp_FK[f], temperature, sampling.top_k_B[b], sampling.top_p_B[b], sampling.min_p_B[b], q_FK[f])
        drawn = draw(kind, ids_FK[f], q_FK[f], kept, temperature == 0, keys_F2[f, 0], keys_F2[f, 1], ids_W, chance_W)
        for w in range(drawn):
            there = child_PW[parents.place[f] + 1, w] if filling else 0
            if there >= allowed_B[b]:
                break
            guess = kind_of(trust_F[f], w, chance_W[w])
            reached = parents.reach[f] * calibrated(hits, trials, guess, chance_W[w])
            if not filling and reached <= floor_B[b]:
                continue
            branch[n], node[n], token[n], reach[n] = b, parents.node[f], ids_W[w], reached
            label[n], row[n], place[n] = guess, f, there
            n += 1
    return branch[:n], node[:n], token[:n], reach[:n], label[:n], row[:n], place[:n], ids_FK, q_FK
