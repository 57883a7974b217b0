"""Converts drafts to the arrays that SGLang verifies, and results to the arrays that it commits. Pure.

A tree of SGLang has N nodes: 0 is the last committed token, 1 + i is node i of the draft, and the others are padding.

Shapes: B branches, N nodes of each, M nodes of all drafts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled_in_place
from decoding.sampling_batch import SamplingBatch
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.interfaces import Branch

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


class FlatTrees(NamedTuple):
    """The trees of B branches.

    tokens   `[B * N]`; padding repeats the last committed token
    visible  `[B * N * N]`: a node attends to its ancestors and itself, no other node to padding
    depths   `[B * N]`: levels below the last committed token; 0 for padding
    """

    tokens: Ints
    visible: Bools
    depths: Ints


def flatten_trees(branches: Sequence[Branch], drafts: Sequence[Draft], nodes: int) -> FlatTrees:
    """Returns the drafts as trees of `nodes` nodes each."""
    shape = (len(branches), nodes)
    tokens_BN = np.repeat(np.array([branch.tokens[-1] for branch in branches], dtype=np.int64), nodes).reshape(shape)
    visible_BNN, depths_BN = np.zeros((*shape, nodes), dtype=bool), np.zeros(shape, dtype=np.int64)
    visible_BNN[:, np.arange(nodes), np.arange(nodes)] = True
    if nodes > 1:
        sizes_B = np.array([len(draft) for draft in drafts], dtype=np.int64)
        tokens_M, parents_M = (
            np.fromiter(chain.from_iterable(column), dtype=np.int64, count=int(sizes_B.sum()))
            for column in ((draft.tokens for draft in drafts), (draft.parents for draft in drafts))
        )
        _place_nodes(sizes_B, tokens_M, parents_M, tokens_BN, visible_BNN, depths_BN)
    return FlatTrees(tokens_BN.reshape(-1), visible_BNN.reshape(-1), depths_BN.reshape(-1))


@compiled_in_place
def _place_nodes(
    sizes_B: Ints, tokens_M: Ints, parents_M: Ints, tokens_BN: Ints, visible_BNN: Bools, depths_BN: Ints
) -> None:
    """Writes the nodes of all drafts into the three arrays. *Mutates* them."""
    first = 0
    for b in range(len(sizes_B)):
        for i in range(sizes_B[b]):
            above = 1 + parents_M[first + i]  # parents come before children, and parent -1 is the root
            tokens_BN[b, 1 + i] = tokens_M[first + i]
            depths_BN[b, 1 + i] = depths_BN[b, above] + 1
            for j in range(above + 1):
                visible_BNN[b, 1 + i, j] = visible_BNN[b, above, j]
        first += sizes_B[b]


def sampling_rows(branches: Sequence[Branch], depths: Ints) -> SamplingBatch:
    """Returns the sampling of the token after each of B * N nodes: the position after the node, its branch's seed."""
    nodes = len(depths) // len(branches)
    lengths_B = np.array([len(branch.tokens) for branch in branches], dtype=np.int64)
    return SamplingBatch.from_params(
        [branch.params for branch in branches],
        [branch.seed for branch in branches],
        np.repeat(lengths_B, nodes) + depths,
        np.array(nodes),
    )


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
    lengths_B = np.array([len(outcome.tokens) for outcome in outcomes], dtype=np.int64)
    tokens_M = np.fromiter(chain.from_iterable(outcome.tokens for outcome in outcomes), dtype=np.int64)
    nodes_M = np.fromiter(chain.from_iterable((-1, *outcome.accepted_nodes) for outcome in outcomes), dtype=np.int64)
    next_tokens_BN = np.zeros((len(outcomes), nodes), dtype=np.int32)
    accepted_rows_BN = np.full((len(outcomes), nodes), -1, dtype=np.int32)
    _place_tokens(lengths_B, tokens_M, nodes_M, next_tokens_BN, accepted_rows_BN)
    return CommittedArrays(next_tokens_BN.reshape(-1), lengths_B.astype(np.int32), accepted_rows_BN)


@compiled_in_place
def _place_tokens(
    lengths_B: Ints, tokens_M: Ints, nodes_M: Ints, next_tokens_BN: Int32s, accepted_rows_BN: Int32s
) -> None:
    """Writes the tokens after the accepted nodes, of which -1 is the root, into the two arrays. *Mutates* them."""
    first, nodes = 0, next_tokens_BN.shape[1]
    for b in range(len(lengths_B)):
        for i in range(lengths_B[b]):
            row = 1 + nodes_M[first + i]
            next_tokens_BN[b, row] = tokens_M[first + i]
            accepted_rows_BN[b, i] = b * nodes + row
        first += lengths_B[b]
