"""From rules for one tree to the outcomes of a round.

A rule *walks* a draft: given p after any node, and coins, it says which nodes are kept and which token follows
them. Most rules go from the top down and look at one node at a time.

Shapes: W wanted rows, N committed tokens, V vocabulary, K ids a drafter drew from.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from decoding.speculation.acceptance.uniform_stream import Coins, KeyedCoins, Vector
from decoding.speculation.interfaces import Branch, Draft
from decoding.speculation.target_logits import Accepted, Target

P = Callable[[int], Vector]
"""The target's distribution `[V]` after a node; -1 is the anchor."""


class Walked(NamedTuple):
    """The nodes kept, from the top, and the token after them, which no node said."""

    path: tuple[int, ...]
    token: int


class Draw(NamedTuple):
    """One draw: the node it made (or found there), its token, and where that stands in `Children.ids_K`."""

    node: int
    token: int
    at: int


class Children(NamedTuple):
    """What was drawn after one node, in the order drawn, and the q it was drawn from."""

    draws: tuple[Draw, ...]
    ids_K: Vector
    q_K: Vector


_LEAF = Children((), np.zeros(0, dtype=np.int64), np.zeros(0))


def children(draft: Draft, node: int) -> Children:
    """What was drawn after `node`; all of it empty after a leaf."""
    if draft.drawn is None or node not in draft.drawn.draws:
        return _LEAF
    ids_K, q_K = draft.drawn.q[node]
    draws = []
    for child in draft.drawn.draws[node]:
        (at,) = np.flatnonzero(ids_K == draft.tokens[child])
        draws.append(Draw(child, draft.tokens[child], int(at)))
    return Children(tuple(draws), ids_K, q_K)


def walk_down(draft: Draft, decide: Callable[[int], int]) -> Walked:
    """Follows the tokens `decide` puts after each node for as long as a child has guessed them.

    If each is distributed as p after its node, whatever was guessed there, so is the whole. A rule that rejects
    a child leaves it no probability, so "the token is a child's" and "that child was accepted" are the same.

    >>> walk_down(Draft((5, 6, 9), (-1, 0, 0)), {-1: 5, 0: 9, 2: 1}.__getitem__)
    Walked(path=(0, 2), token=1)
    """
    child = {(parent, token): i for i, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    path: list[int] = []
    node = -1
    while (found := child.get((node, token := decide(node)))) is not None:
        path.append(found)
        node = found
    return Walked(tuple(path), token)


def walk_each(
    walk: Callable[[Draft, P, Coins], Walked], branches: Items[Branch], drafts: Items[Draft], target: Target
) -> list[Accepted]:
    """Walks every branch's draft with its own coins."""
    log_p_WV = target.log_p.cpu().numpy()  # all rows at once: one wait for the device

    def after(first: int) -> P:
        return lambda node: _probabilities(log_p_WV[first + 1 + node])

    return outcomes(
        [
            walk(draft, after(first), KeyedCoins(branch.seed, len(branch.tokens)))
            for branch, draft, first in zip(branches, drafts, target.first, strict=True)
        ],
        drafts,
        target,
    )


def outcomes(walked: Items[Walked], drafts: Items[Draft], target: Target) -> list[Accepted]:
    """The walks with their tokens' raw log-probabilities, looked up together."""
    rows_N = [first + 1 + node for first, (path, _) in zip(target.first, walked, strict=True) for node in (-1, *path)]
    said = [
        (*(draft.tokens[node] for node in path), token) for draft, (path, token) in zip(drafts, walked, strict=True)
    ]
    tokens_N = [token for tokens in said for token in tokens]
    where = target.raw_log_p.device
    logprobs = iter(target.raw_log_p[torch.tensor(rows_N, device=where), torch.tensor(tokens_N, device=where)].tolist())
    return [
        Accepted(path, tokens, tuple(islice(logprobs, len(tokens))))
        for (path, _), tokens in zip(walked, said, strict=True)
    ]


def _probabilities(log_p_V: Vector) -> Vector:
    # In float64, and to one again: residuals subtract numbers that float32 knows to seven digits only.
    p_V = np.exp(log_p_V.astype(np.float64))
    return np.asarray(p_V / p_V.sum())
