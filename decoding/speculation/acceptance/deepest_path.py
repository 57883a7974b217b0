"""Finds the longest path of a draft whose nodes a lossy rule accepts, for rules that judge every node by itself.

Shapes: W logits rows, N nodes of all drafts of a round, D nodes of one draft.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from decoding.speculation.draft import Draft, VerifiedPath

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
