"""Stochastic beams and dynamic trees drawn as they are defined, slowly, for enumeration and comparison."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from decoding.core import Tokens
from decoding.speculation.acceptance.uniform_stream import UniformStream, Vector
from decoding.speculation.draft import Draft, DraftSampling, SamplingRecord

Q = dict[Tokens, Vector]
DrawShape = Callable[[Q, UniformStream], Draft]


def draft_of(children: dict[Tokens, list[int]], q: Q, kind: DraftSampling) -> Draft:
    """Returns the draft with these children of every path, in the order drawn."""
    paths: list[Tokens] = []
    level: list[Tokens] = [()]
    while level:
        level = [(*path, token) for path in level for token in children.get(path, [])]
        paths += level
    at = {path: i for i, path in enumerate([(), *paths], start=-1)}
    record = SamplingRecord(
        kind,
        {at[path]: tuple(at[*path, token] for token in tokens) for path, tokens in children.items()},
        {at[path]: (np.arange(len(q[path])), q[path]) for path in children},
    )
    draft = Draft(tuple(path[-1] for path in paths), tuple(at[path[:-1]] for path in paths), sampling_record=record)
    draft.assert_invariants()
    return draft


def draw_beam(q: Q, stream: UniformStream, *, widths: tuple[int, ...] = (2, 2)) -> Draft:
    """Draws whole paths without replacement; level d keeps the first `widths[d]` of their beginnings."""
    depth = len(widths)
    vocabulary = len(q[()])
    leaves = list(product(range(vocabulary), repeat=depth))
    weights = np.array([_path_probability(leaf, q) for leaf in leaves])
    order: list[Tokens] = []

    def beginnings(length: int) -> list[Tokens]:
        if length == 0:
            return [()]
        above = beginnings(length - 1)
        return list(dict.fromkeys(leaf[:length] for leaf in order if leaf[: length - 1] in above))[: widths[length - 1]]

    def is_full(length: int) -> bool:
        return len(beginnings(length)) >= min(widths[length - 1], vocabulary * len(beginnings(length - 1)))

    while not all(is_full(length) for length in range(1, depth + 1)):
        index = stream.sample_index(weights)
        weights[index] = 0
        order.append(leaves[index])
    children: dict[Tokens, list[int]] = {}
    for length in range(1, depth + 1):
        for path in beginnings(length):
            children.setdefault(path[:-1], []).append(path[-1])
    return draft_of(children, q, "stochastic_beam")


def draw_dynamic_tree(q: Q, stream: UniformStream, *, nodes: int = 3, depth: int = 2) -> Draft:
    """Draws one token after the other, each after the path where a draw is most likely to be tried."""
    slots: list[tuple[Any, Tokens]] = [(1, ())]
    left = {path: q_V.copy() for path, q_V in q.items()}
    children: dict[Tokens, list[int]] = {}
    for _ in range(nodes):
        if not slots:
            break
        best = max(range(len(slots)), key=lambda i: slots[i][0])
        value, path = slots.pop(best)
        token = stream.sample_index(left[path])
        chance = left[path][token] / left[path].sum()
        left[path][token] = 0
        children.setdefault(path, []).append(token)
        if len(path) + 1 < depth:
            slots.append((value * chance, (*path, token)))
        if left[path].sum() > 0:
            slots.append((value * (1 - chance), path))
    return draft_of(children, q, "dynamic_tree")


def _path_probability(tokens: Tokens, q: Q) -> Any:
    probability: Any = 1
    for i, token in enumerate(tokens):
        probability = probability * q[tokens[:i]][token]
    return probability
