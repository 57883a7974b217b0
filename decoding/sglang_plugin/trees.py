"""Converts drafts to the arrays that SGLang verifies, and results to those that it commits. Pure.

A tree has N nodes there: 0 is the last committed token, 1 + i our node i, and what is left over is padding.

Shapes: B branches, N nodes of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.sampler import SamplingBatch
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.interfaces import Branch

Ints = npt.NDArray[np.int64]


def flatten_trees(
    branches: Sequence[Branch], drafts: Sequence[Draft], nodes: int
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Tokens `[B * N]`, and for each node which nodes it sees, `[B * N * N]`: its ancestors and itself.

    Padding repeats the last committed token; no other node attends to it.
    """
    tokens_BN = np.repeat(np.array([[branch.tokens[-1]] for branch in branches], dtype=np.int64), nodes, axis=1)
    mask_BNN = np.zeros((len(branches), nodes, nodes), dtype=bool)
    mask_BNN[:, np.arange(nodes), np.arange(nodes)] = True
    for b, draft in enumerate(drafts):
        tokens_BN[b, 1 : 1 + len(draft)] = draft.tokens
        for i, parent in enumerate(draft.parents):
            mask_BNN[b, 1 + i] |= mask_BNN[b, 1 + parent]
    return tokens_BN.reshape(-1), mask_BNN.reshape(-1)


def sampling_rows(branches: Sequence[Branch], drafts: Sequence[Draft], nodes: int) -> SamplingBatch:
    """How the token after each of B * N nodes is drawn: at the node's position plus one, with its branch's seed."""
    positions_BN = np.zeros((len(branches), nodes), dtype=np.int64)
    for b, (branch, draft) in enumerate(zip(branches, drafts, strict=True)):
        positions_BN[b] = len(branch.tokens)
        positions_BN[b, 1 : 1 + len(draft)] += np.array(draft.depths, dtype=np.int64)
    each = [branch for branch in branches for _ in range(nodes)]
    return SamplingBatch.from_params([b.params for b in each], [b.seed for b in each], positions_BN.reshape(-1))


class CommittedArrays(NamedTuple):
    """What SGLang commits, int32.

    next_tokens      `[B * N]`, the token after each accepted node
    lengths   `[B]`, tokens committed, the last one, which is not drafted, included
    accepted_rows      `[B, N]`, the rows of the accepted nodes from the root down, padded with -1
    """

    next_tokens: Any
    lengths: Any
    accepted_rows: Any


def to_committed_arrays(outcomes: Sequence[VerifyResult], nodes: int) -> CommittedArrays:
    """Returns the results of B drafts as arrays.

    >>> to_committed_arrays([VerifyResult((0, 2), (5, 9, 7), (0.0, 0.0, 0.0))], nodes=4)
    CommittedArrays(next_tokens=array([5, 9, 0, 7], dtype=int32), lengths=array([3], dtype=int32), \
accepted_rows=array([[ 0,  1,  3, -1]], dtype=int32))
    """
    next_tokens = np.zeros(len(outcomes) * nodes, dtype=np.int32)
    accepted_rows = np.full((len(outcomes), nodes), -1, dtype=np.int32)
    for b, outcome in enumerate(outcomes):
        rows = b * nodes + np.array([0, *(1 + node for node in outcome.accepted_nodes)])
        accepted_rows[b, : len(rows)] = rows
        next_tokens[rows] = outcome.tokens
    return CommittedArrays(
        next_tokens, np.array([len(outcome.tokens) for outcome in outcomes], dtype=np.int32), accepted_rows
    )
