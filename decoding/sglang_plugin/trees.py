"""Drafts as the arrays SGLang verifies, and what became of them as the arrays it commits. Pure.

A tree has N nodes there: 0 is the last committed token, 1 + i our node i, and what is left over is padding.

Shapes: B branches, N nodes of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.sampler import SamplingRows
from decoding.speculation.interfaces import Branch, Draft
from decoding.speculation.target_logits import Accepted

Ints = npt.NDArray[np.int64]


def trees(branches: Sequence[Branch], drafts: Sequence[Draft], nodes: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Tokens `[B * N]`, and for each node which nodes it sees, `[B * N * N]`: its ancestors and itself.

    Padding repeats the last committed token and is seen by nobody.
    """
    tokens_BN = np.repeat(np.array([[branch.tokens[-1]] for branch in branches], dtype=np.int64), nodes, axis=1)
    seen_BNN = np.zeros((len(branches), nodes, nodes), dtype=bool)
    seen_BNN[:, np.arange(nodes), np.arange(nodes)] = True
    for b, draft in enumerate(drafts):
        tokens_BN[b, 1 : 1 + len(draft)] = draft.tokens
        for i, parent in enumerate(draft.parents):
            seen_BNN[b, 1 + i] |= seen_BNN[b, 1 + parent]
    return tokens_BN.reshape(-1), seen_BNN.reshape(-1)


def sampling_rows(branches: Sequence[Branch], drafts: Sequence[Draft], nodes: int) -> SamplingRows:
    """How the token after each of B * N nodes is drawn: at the node's position plus one, with its branch's seed."""
    positions_BN = np.zeros((len(branches), nodes), dtype=np.int64)
    for b, (branch, draft) in enumerate(zip(branches, drafts, strict=True)):
        positions_BN[b] = len(branch.tokens)
        positions_BN[b, 1 : 1 + len(draft)] += np.array(draft.depths, dtype=np.int64)
    each = [branch for branch in branches for _ in range(nodes)]
    return SamplingRows.of([b.params for b in each], [b.seed for b in each], positions_BN.reshape(-1))


class Committed(NamedTuple):
    """What SGLang commits, int32.

    said      `[B * N]`, the token after each kept node
    lengths   `[B]`, tokens committed, the one that nobody guessed included
    kept      `[B, N]`, the rows of the kept nodes from the top, padded with -1
    """

    said: Any
    lengths: Any
    kept: Any


def committed(outcomes: Sequence[Accepted], nodes: int) -> Committed:
    """
    >>> committed([Accepted((0, 2), (5, 9, 7), (0.0, 0.0, 0.0))], nodes=4)
    Committed(said=array([5, 9, 0, 7], dtype=int32), lengths=array([3], dtype=int32), \
kept=array([[ 0,  1,  3, -1]], dtype=int32))
    """
    said = np.zeros(len(outcomes) * nodes, dtype=np.int32)
    kept = np.full((len(outcomes), nodes), -1, dtype=np.int32)
    for b, outcome in enumerate(outcomes):
        rows = b * nodes + np.array([0, *(1 + node for node in outcome.path)])
        kept[b, : len(rows)] = rows
        said[rows] = outcome.tokens
    return Committed(said, np.array([len(outcome.tokens) for outcome in outcomes], dtype=np.int32), kept)
