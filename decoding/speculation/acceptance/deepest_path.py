"""Finds the longest path of a draft whose nodes a lossy rule accepts, for rules that judge every node by itself.

Shapes: W logits rows, N nodes of all drafts of a round, D nodes of one draft.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.speculation.draft import Draft, VerifiedPath, VerifyResult

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from torch import Tensor

    from decoding.speculation.target_logits import TargetLogits

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def find_deepest_path(draft: Draft, is_accepted_D: Bools, likelihood_D: npt.NDArray[np.floating]) -> tuple[int, ...]:
    """Returns the longest path from the root whose nodes are all accepted; of equals that of the highest likelihood.

    likelihood_D   log-probability of each node after its parent; of a path it is the sum

    >>> draft = Draft((5, 6, 7, 8), (-1, -1, 1, 1))
    >>> find_deepest_path(draft, np.array([True, True, True, True]), np.array([0.0, -1.0, -2.0, -1.0]))
    (1, 3)
    """
    best, best_key = -1, (0, 0.0)
    keys: list[tuple[int, float] | None] = []
    for node, parent in enumerate(draft.parents):
        above = (0, 0.0) if parent < 0 else keys[parent]
        key = None if above is None or not is_accepted_D[node] else (above[0] + 1, above[1] + float(likelihood_D[node]))
        keys.append(key)
        if key is not None and key > best_key:
            best, best_key = node, key
    return draft.path_to(best)


def list_parent_rows(drafts: Items[Draft], first_rows: Items[int]) -> Ints:
    """Returns `[N]`: the logits row of the parent of every node, in the order of the drafts and of their nodes."""
    rows = [first + 1 + parent for draft, first in zip(drafts, first_rows, strict=True) for parent in draft.parents]
    return np.array(rows, dtype=np.int64)


def choose_deepest_paths(
    drafts: Items[Draft],
    first_rows: Items[int],
    next_tokens: Items[int],
    is_accepted_N: Bools,
    likelihood_N: npt.NDArray[np.floating],
) -> list[VerifiedPath]:
    """Returns the path of each draft, with the target's own token after it.

    A node that is the target's own token after its parent is always accepted, so the token after a path is not drafted.

    next_tokens   by row, the target's own token
    """
    paths, at = [], 0
    for draft, first in zip(drafts, first_rows, strict=True):
        mine = slice(at, at := at + len(draft))
        is_own = [
            token == next_tokens[first + 1 + parent] for token, parent in zip(draft.tokens, draft.parents, strict=True)
        ]
        path = find_deepest_path(draft, is_accepted_N[mine] | np.array(is_own, dtype=np.bool_), likelihood_N[mine])
        paths.append(VerifiedPath(path, next_tokens[first + 1 + (path[-1] if path else -1)]))
    return paths


class NodeRows(NamedTuple):
    """Of all nodes of a round, on the device of the logits: the row of the node, that of its parent, and its token."""

    own_N: Tensor
    parent_N: Tensor
    token_N: Tensor

    @classmethod
    def collect(cls, drafts: Items[Draft], target: TargetLogits) -> NodeRows:
        """Collects them in the order of the drafts and of their nodes."""
        from decoding.device_arrays import copy_numbers  # here, as above

        rows = [
            first + 1 + node
            for draft, first in zip(drafts, target.first_rows, strict=True)
            for node in range(len(draft))
        ]
        tokens = [token for draft in drafts for token in draft.tokens]
        numbers = (
            np.array(rows, dtype=np.int64),
            list_parent_rows(drafts, target.first_rows),
            np.array(tokens, dtype=np.int64),
        )
        return cls(*copy_numbers(numbers, target.logits_WV.device))


def verify_deepest_paths(
    drafts: Items[Draft], target: TargetLogits, nodes: NodeRows, next_tokens_W: Tensor, is_accepted_N: Tensor
) -> list[VerifyResult]:
    """Returns the results of a rule that judges every node by itself, given its judgements on the device.

    Reads from the device once: tokens, judgements and log-probabilities, no distribution.
    """
    next_tokens, next_logprobs, is_accepted, likelihood, logprobs = target.read_numbers(
        next_tokens_W,
        target.select_logprobs(next_tokens_W),
        is_accepted_N,
        target.log_p[nodes.parent_N, nodes.token_N],
        target.select_logprobs(nodes.token_N, nodes.parent_N),
    )
    next_of, results, start = next_tokens.tolist(), [], 0
    paths = choose_deepest_paths(drafts, target.first_rows, next_of, is_accepted, likelihood.astype(np.float64))
    for draft, first, (path, token) in zip(drafts, target.first_rows, paths, strict=True):
        last_row = first + 1 + (path[-1] if path else -1)
        tokens = (*(draft.tokens[node] for node in path), token)
        of_tokens = (*(float(logprobs[start + node]) for node in path), float(next_logprobs[last_row]))
        results.append(VerifyResult(path, tokens, of_tokens))
        start += len(draft)
    return results
