"""Chooses the nodes of each level that a draft model is run over: those whose children may be kept.

What is kept is known at the end, when all levels are built. A level that fed whatever has a chance would leave no room
for the levels below, which matter most where the model is sure of every next token. So what will be kept is predicted:
every node of a level begins a chain of likeliest children, each as much less probable than its parent as they were on
average until now.

Shapes: F nodes that may be fed, N nodes of all drafts until now.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled
from decoding.speculation.drafters.source import DraftSource, Floats, Ints, SourceStates

_LEAST_FED = 64
_HALVES = 12  # thresholds of a prediction: 1/2, 1/4, ...
_MOST_RATIO = 0.999


@runtime_checkable
class TakesPasses(Protocol):
    """Draft source that runs a model, over each of some contexts."""

    def needs_pass(self, state: SourceStates) -> npt.NDArray[np.bool_] | None:
        """Returns whether each of F contexts takes a row of a forward pass; None where none does."""
        ...


def mark_passes(source: DraftSource, state: SourceStates) -> npt.NDArray[np.bool_] | None:
    """Returns which of F contexts take a row of a forward pass; None where none does: most sources have no model."""
    return source.needs_pass(state) if isinstance(source, TakesPasses) else None


def limit_feeding(total: int) -> int:
    """Returns how many nodes a model is run over at most: twice as many as are kept, since later ones outdo some."""
    return max(2 * total, _LEAST_FED)


@compiled
def predict_floor(
    probability_F: Floats, probability_N: Floats, ratio: float, levels: int, branches: int, total: int,
    seconds_N: npt.NDArray[np.float64],
) -> float:  # fmt: skip
    """Returns a path probability below which no node is expected to be kept, nor any below it.

    ratio    of the path probability of a likeliest child to its parent's
    levels   that may follow
    total    nodes that are kept at most; with `seconds_N` for 0, 1, ... nodes as many as give most tokens per second
    """
    ratio = min(ratio, _MOST_RATIO)
    most = min(total, len(seconds_N) - 1) if len(seconds_N) else total
    threshold, best_threshold, best_rate = 1.0, 1.0, 0.0
    for _ in range(_HALVES):
        threshold /= 2
        nodes, tokens = 0, float(branches)
        for probability in probability_N:
            if probability > threshold:
                nodes, tokens = nodes + 1, tokens + probability
        for probability in probability_F:
            if ratio * probability > threshold:
                below = min(levels, int(np.log(threshold / probability) / np.log(ratio)))
                nodes, tokens = nodes + below, tokens + probability * ratio * (1 - ratio**below) / (1 - ratio)
        if nodes > most:
            break
        rate = tokens / seconds_N[nodes] if len(seconds_N) else tokens
        if rate >= best_rate:
            best_rate, best_threshold = rate, threshold
    return best_threshold / 2  # it lies between two thresholds


@compiled
def select_fed_rows(
    probability_F: Floats, probability_N: Floats, ratio: float, levels: int, branches: int, total: int,
    seconds_N: npt.NDArray[np.float64], most: int,
) -> Ints:  # fmt: skip
    """Returns the rows of the nodes that are fed, in their order: at most `most`, of equals the first ones.

    The other arguments are those of `predict_floor`.
    """
    floor = np.float32(0.0)
    if len(probability_F) > branches:  # with one of each branch or fewer there is nothing to choose
        floor = np.float32(predict_floor(probability_F, probability_N, ratio, levels, branches, total, seconds_N))
    rows = np.flatnonzero(probability_F > floor)
    if len(rows) <= most:
        return rows
    return rows[np.sort(np.argsort(-probability_F[rows], kind="mergesort")[:most])]


class Feeding:
    """Which nodes of the drafts of a round are fed, for `build_levels`."""

    def __init__(self, branches: int, total: int, seconds_N: npt.NDArray[np.float64]) -> None:
        self._branches, self._total, self._seconds_N = branches, total, seconds_N
        self._left = limit_feeding(total)
        self._parents = self._children = 0.0  # path probabilities of parents and of the likeliest child of each

    def select_rows(self, needs_pass_F: npt.NDArray[np.bool_], p_F: Floats, p_N: Floats, levels: int) -> Ints:
        """Returns the rows that are asked for children: of those that take a pass the ones that are fed. *Mutates*.

        `p_F` and `p_N` are path probabilities of these nodes and of all nodes; `levels` may follow.
        """
        fed_rows = np.flatnonzero(needs_pass_F)
        if not len(fed_rows):
            return np.arange(len(p_F))
        ratio = self._children / self._parents if self._parents else 0.0
        chosen = select_fed_rows(
            p_F[fed_rows], p_N, ratio, levels, self._branches, self._total, self._seconds_N, self._left
        )
        self._left -= len(chosen)
        is_asked_F = ~needs_pass_F
        is_asked_F[fed_rows[chosen]] = True
        return np.flatnonzero(is_asked_F)

    def observe_level(self, parents_F: Floats, parent_row_N: Ints, probability_N: Floats) -> None:
        """Records the children of some parents. *Mutates*."""
        likeliest_F = np.zeros(len(parents_F), dtype=np.float32)
        np.maximum.at(likeliest_F, parent_row_N, probability_N)
        self._parents += float(parents_F[likeliest_F > 0].sum())
        self._children += float(likeliest_F.sum())
