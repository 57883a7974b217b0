"""Verifies drafts against logits on a GPU: the host gets probabilities of drafted ids, then tokens, and no `[W, V]`.

    device   p of the ids that were drawn from, and of all others together       first wait of the host
    host     the rule, over reduced vocabularies: path, weights, uniform number
    device   the token after each path, and the log-probabilities                second wait

The same uniform numbers decide as on a CPU, so the results are those of `verify_each` but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from itertools import islice
from typing import NamedTuple

import numpy as np

from decoding.device_arrays import copy_numbers
from decoding.speculation.acceptance.reduced_vocabulary import DeferringStream, ReducedDraft, reduce_draft
from decoding.speculation.acceptance.uniform_stream import UniformStream, Vector
from decoding.speculation.device_probabilities import IdsOfRows, draw_tokens, read_probabilities
from decoding.speculation.draft import Draft, VerifiedPath, VerifyResult
from decoding.speculation.interfaces import Branch
from decoding.speculation.target_logits import TargetLogits

VerifyTree = Callable[[Draft, Callable[[int], Vector], UniformStream], VerifiedPath]


class _PathEnd(NamedTuple):
    """The accepted nodes of a draft, and how the token after them is drawn from row `row`.

    ids_K, weights_K   the ids that were drawn from there, and their weights
    scale              what the probabilities of all other ids are multiplied with
    """

    nodes: tuple[int, ...]
    row: int
    ids_K: Vector
    weights_K: Vector
    scale: float
    uniform: float


def verify_on_device(
    verify_tree: VerifyTree, branches: Items[Branch], drafts: Items[Draft], target: TargetLogits
) -> list[VerifyResult]:
    """Returns one result per branch, of a rule that takes all ids alike which were not drawn from."""
    reduced = [reduce_draft(draft) for draft in drafts]
    p_of = _read_distributions(reduced, target)
    ends = [
        _find_end(verify_tree, one, first, p_of, DeferringStream(branch.seed, len(branch.tokens)))
        for branch, one, first in zip(branches, reduced, target.first_rows, strict=True)
    ]
    return _draw_ends(ends, drafts, target)


def _read_distributions(reduced: Items[ReducedDraft], target: TargetLogits) -> Mapping[int, Vector]:
    """Returns p over the reduced vocabulary by logits row, of the rows with children."""
    ids_of = {
        first + 1 + node: ids
        for first, one in zip(target.first_rows, reduced, strict=True)
        for node, ids in one.ids_of.items()
    }
    if not ids_of:  # plain decoding: nothing to wait for
        return {}
    p_N, others_R = target.read_numbers(
        *read_probabilities(target.log_p, IdsOfRows.collect(list(ids_of), list(ids_of.values())))
    )
    ends = np.cumsum([len(ids) for ids in ids_of.values()])
    return {
        row: np.append(p_K, others) for row, p_K, others in zip(ids_of, np.split(p_N, ends[:-1]), others_R, strict=True)
    }


def _find_end(
    verify_tree: VerifyTree, reduced: ReducedDraft, first: int, p_of: Mapping[int, Vector], stream: DeferringStream
) -> _PathEnd:
    # after a leaf there is one outcome
    after_leaf = np.ones(1)
    nodes, _ = verify_tree(reduced.draft, lambda node: p_of.get(first + 1 + node, after_leaf), stream)
    last = nodes[-1] if nodes else -1
    row, weights = first + 1 + last, stream.weights_V
    others = p_of.get(row, after_leaf)[-1]
    scale = float(weights[-1] / others) if others > 0 else 0.0
    return _PathEnd(nodes, row, reduced.list_ids(last), weights[:-1], scale, stream.uniform)


def _draw_ends(ends: Items[_PathEnd], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
    """Draws the token after each path; returns the results, with the raw log-probabilities of all tokens."""
    drawn = draw_tokens(
        target.log_p,
        IdsOfRows.collect([end.row for end in ends], [end.ids_K for end in ends]),
        np.concatenate([end.weights_K for end in ends]),
        np.array([end.scale for end in ends]),
        np.array([end.uniform for end in ends]),
    )
    rows_N, tokens_N, places_B = list[int](), list[int](), list[int]()
    for end, draft, first in zip(ends, drafts, target.first_rows, strict=True):
        rows_N += [first + 1 + node for node in (-1, *end.nodes)]
        tokens_N += [draft.tokens[node] for node in end.nodes]
        places_B.append(len(tokens_N))
        tokens_N.append(0)  # the one that is drawn
    rows, tokens, places = copy_numbers(
        [np.array(numbers, dtype=np.int64) for numbers in (rows_N, tokens_N, places_B)], drawn.device
    )
    tokens[places] = drawn
    next_tokens, logprobs = target.read_numbers(drawn, target.select_logprobs(tokens, rows))
    left = iter(logprobs.tolist())
    return [
        VerifyResult(
            end.nodes,
            (*(draft.tokens[node] for node in end.nodes), token),
            tuple(islice(left, len(end.nodes) + 1)),
        )
        for end, draft, token in zip(ends, drafts, next_tokens.tolist(), strict=True)
    ]
