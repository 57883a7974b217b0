"""Draft source over the candidates of a server's own draft worker; merged trees in the form of its tree builder.

The draft worker of SGLang (EAGLE, MTP, a small model) expands K paths per request and step, and gives every token that
it considered, with the probability of its path. `HybridSource` merges them with n-grams: a token that both propose is
one node, and n-grams that the draft model finds unlikely are dropped (RASD, arXiv 2503.03434). Imports no SGLang.

Shapes: B requests, G groups of K candidates, C = G * K candidates, F contexts, N nodes of a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.speculation.draft import Draft
from decoding.speculation.drafters.source import Floats, Ints, NextTokens
from decoding.speculation.interfaces import Branch, Feedback

_UNKNOWN = -1  # a context that the draft worker has not expanded


class CandidateLists(NamedTuple):
    """What a draft worker has considered for B requests.

    parents  `[B, G]`: the candidate below which each group is; group 0 is below the last committed token, whatever its
             parent
    scores   `[B, C]`: probability of the path to each candidate, at temperature 1; candidate c is in group c // K
    tokens   `[B, C]`
    """

    parents: Ints
    scores: Floats
    tokens: Ints


class CandidateTrees:
    """Implements `DraftSource` with the candidates of this round, which `set_round` gives.

    State: for each context its request and its group, as one number.
    """

    has_probabilities = True
    feedback_k = 0

    def __init__(self) -> None:
        self._lists = CandidateLists(
            np.empty((0, 1), dtype=np.int64), np.empty((0, 1), dtype=np.float32), np.empty((0, 1), dtype=np.int64)
        )
        self._group_below_BC = self._lists.tokens

    def set_round(self, lists: CandidateLists) -> None:
        """Sets what the next draft is built from. *Mutates*."""
        self._lists = lists
        requests, groups = lists.parents.shape
        below_BC = np.full(lists.tokens.shape, _UNKNOWN, dtype=np.int64)
        rows = np.repeat(np.arange(requests), groups - 1)
        below_BC[rows, lists.parents[:, 1:].reshape(-1)] = np.tile(np.arange(1, groups), requests)
        self._group_below_BC = below_BC

    def root_states(self, branches: Sequence[Branch]) -> Ints:
        """Returns the groups below the last committed tokens."""
        requests, groups = self._lists.parents.shape
        assert len(branches) == requests, "the candidates are those of another batch"
        return np.arange(0, requests * groups, groups, dtype=np.int64)

    def next_tokens(self, state: Ints) -> NextTokens:
        """Returns the candidates of each group, whose probabilities sum to less than one."""
        request_F, group_F, is_known_F = self._read_states(state)
        members_FK = group_F[:, None] * self._group_size + np.arange(self._group_size)
        ids_FK = np.where(is_known_F[:, None], self._lists.tokens[request_F[:, None], members_FK], -1)
        parent_F = self._lists.parents[request_F, group_F]
        above_F = np.where(group_F > 0, self._lists.scores[request_F, parent_F], np.float32(1))
        with np.errstate(divide="ignore", invalid="ignore"):
            p_FK = self._lists.scores[request_F[:, None], members_FK] / above_F[:, None]
            p_FK = np.where((ids_FK >= 0) & (p_FK > 0), np.minimum(p_FK, 1), 0)  # 0 / 0 is no candidate
            logp_FK = np.log(p_FK).astype(np.float32)
        order_FK = np.argsort(-p_FK, axis=1, kind="stable")
        ids_FK = np.take_along_axis(np.where(p_FK > 0, ids_FK, -1), order_FK, 1)
        return NextTokens(ids_FK, np.take_along_axis(logp_FK, order_FK, 1), np.zeros(len(state), dtype=np.int64))

    def advance(self, state: Ints, tokens_F: Ints) -> Ints:
        """Returns the groups below the tokens; unknown where the token is no candidate, or was not expanded."""
        request_F, group_F, is_known_F = self._read_states(state)
        members_FK = group_F[:, None] * self._group_size + np.arange(self._group_size)
        same_FK = (self._lists.tokens[request_F[:, None], members_FK] == tokens_F[:, None]) & is_known_F[:, None]
        candidate_F = members_FK[np.arange(len(state)), same_FK.argmax(axis=1)]
        below_F = np.where(same_FK.any(axis=1), self._group_below_BC[request_F, candidate_F], _UNKNOWN)
        below: Ints = np.where(below_F >= 0, request_F * self._lists.parents.shape[1] + below_F, _UNKNOWN)
        return below

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Does nothing: the draft model does not learn."""

    @property
    def _group_size(self) -> int:
        return int(self._lists.tokens.shape[1] // self._lists.parents.shape[1])

    def _read_states(self, state: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """Returns request and group of each context, 0 for both where it is unknown, and whether it is known."""
        is_known_F = state >= 0
        request_F, group_F = np.divmod(np.where(is_known_F, state, 0), self._lists.parents.shape[1])
        return request_F, group_F, is_known_F


class EncodedTrees(NamedTuple):
    """Trees as SGLang's tree builder takes them, for groups of `group_size` candidates and paths of `depth` tokens.

    parents   `[B, group_size * (depth - 1) + 1]`: the candidate below which each group is
    selected  `[B, N - 1]`: the candidate that each node is
    tokens    `[B, N - 1]`
    """

    parents: Ints
    selected: Ints
    tokens: Ints
    group_size: int
    depth: int


def encode_trees(drafts: Sequence[Draft], nodes: int) -> EncodedTrees:
    """Returns the drafts as trees of `nodes` nodes, the last committed token included.

    The builder knows the trees of a draft model, with as many children below each node. Any tree is one of those if a
    group has as many members as there are nodes: node i is a member of the group 1 + its parent. What is missing at the
    end are children of the last committed token, with id 0, that nothing accepts.

    >>> encode_trees([Draft((5, 6, 9), (-1, 0, 0))], nodes=5).selected
    array([[0, 5, 6, 3]])
    """
    size = nodes - 1
    parents = np.zeros((len(drafts), size * size + 1), dtype=np.int64)
    selected, tokens = (np.zeros((len(drafts), size), dtype=np.int64) for _ in range(2))
    for b, draft in enumerate(drafts):
        # the place of a node in its group is its own index: no two nodes have the same
        groups = [*(1 + parent for parent in draft.parents), *[0] * (size - len(draft))]
        selected[b] = np.array(groups, dtype=np.int64) * size + np.arange(size)
        parents[b, 1 : 1 + size] = selected[b]
        tokens[b, : len(draft)] = draft.tokens
    return EncodedTrees(parents, selected, tokens, size, nodes)
