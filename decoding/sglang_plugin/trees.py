"""Converts drafts to the arrays that SGLang verifies, and results to the arrays that it commits. Pure.

A tree of SGLang has N nodes: 0 is the last committed token, 1 + i is node i of the draft, and the others are padding.

Shapes: B branches, N nodes of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.sampling_batch import SamplingBatch
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.interfaces import Branch

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


def flatten_trees(
    branches: Sequence[Branch], drafts: Sequence[Draft], nodes: int
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Returns tokens `[B * N]` and the attention mask `[B * N * N]`: a node attends to its ancestors and itself.

    Padding repeats the last committed token; no other node attends to it.
    """
    tokens_BN = np.repeat(np.array([[branch.tokens[-1]] for branch in branches], dtype=np.int64), nodes, axis=1)
    mask_BNN = np.zeros((len(branches), nodes, nodes), dtype=bool)
    mask_BNN[:, np.arange(nodes), np.arange(nodes)] = True
    for b, draft in enumerate(drafts):
        tokens_BN[b, 1 : 1 + len(draft)] = draft.tokens
        for i, parent in enumerate(draft.parents):
            # Parents come before children, so the parent's row is complete; parent -1 is row 0.
            mask_BNN[b, 1 + i] |= mask_BNN[b, 1 + parent]
    return tokens_BN.reshape(-1), mask_BNN.reshape(-1)


def sampling_rows(branches: Sequence[Branch], drafts: Sequence[Draft], nodes: int) -> SamplingBatch:
    """Returns the sampling of the token after each of B * N nodes: the position after the node, its branch's seed."""
    positions_BN = np.zeros((len(branches), nodes), dtype=np.int64)
    for b, (branch, draft) in enumerate(zip(branches, drafts, strict=True)):
        positions_BN[b] = len(branch.tokens)  # the root's next position; a node at depth d adds d
        positions_BN[b, 1 : 1 + len(draft)] += np.array(draft.depths, dtype=np.int64)
    rows = [branch for branch in branches for _ in range(nodes)]
    return SamplingBatch.from_params([b.params for b in rows], [b.seed for b in rows], positions_BN.reshape(-1))


class CommittedArrays(NamedTuple):
    """The arrays that SGLang commits, int32.

    next_tokens    `[B * N]`, the token after each accepted node
    lengths        `[B]`, committed tokens, the last one, which is not drafted, included
    accepted_rows  `[B, N]`, the rows of the accepted nodes from the root down, padded with -1
    """

    next_tokens: Int32s
    lengths: Int32s
    accepted_rows: Int32s


def to_committed_arrays(outcomes: Sequence[VerifyResult], nodes: int) -> CommittedArrays:
    """Returns the results of B drafts as arrays.

    >>> to_committed_arrays([VerifyResult((0, 2), (5, 9, 7), (0.0, 0.0, 0.0))], nodes=4)
    CommittedArrays(next_tokens=array([5, 9, 0, 7], dtype=int32), lengths=array([3], dtype=int32), \
accepted_rows=array([[ 0,  1,  3, -1]], dtype=int32))
    """
    next_tokens = np.zeros(len(outcomes) * nodes, dtype=np.int32)
    accepted_rows = np.full((len(outcomes), nodes), -1, dtype=np.int32)
    for b, outcome in enumerate(outcomes):
        # The root (node 0) is always accepted; its next token is the first committed one.
        rows = b * nodes + np.array([0, *(1 + node for node in outcome.accepted_nodes)])
        accepted_rows[b, : len(rows)] = rows
        next_tokens[rows] = outcome.tokens
    return CommittedArrays(
        next_tokens, np.array([len(outcome.tokens) for outcome in outcomes], dtype=np.int32), accepted_rows
    )
