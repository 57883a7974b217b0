"""Rules of dynamic parallel tree search: how many paths go on together, which ones, and which stay in focus. Pure.

After the release of the paper's authors (arXiv 2502.16235), where the paper leaves a rule open.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass
class PathStats:
    """Statistics of a node: its own value, and the solutions below it.

    value      of the path that ends here, from 0 to 1
    total      sum of the values of the solutions below
    solutions  their number
    """

    value: float
    total: float = 0.0
    solutions: int = 0

    @property
    def visits(self) -> int:
        """Visits as the rule counts them: a node has one from the beginning."""
        return 1 + self.solutions


def upper_bound(node: PathStats, parent: PathStats, exploration: float) -> float:
    """Returns the priority of an open path: Q / N + c value sqrt(1 + N_parent) / (1 + N).

    >>> upper_bound(PathStats(0.5), PathStats(0.2, total=0.9, solutions=2), exploration=1.0)
    0.5
    """
    rise = exploration * math.sqrt(1 + parent.visits) * node.value / (1 + node.visits)
    return node.total / node.visits + rise


def count_paths(parallel: int, kv_tokens: int | None, path_lengths: Sequence[int]) -> int:
    """Returns how many of the first of these paths go on together: as many as fit, at least 1, at most `parallel`.

    kv_tokens     tokens that they may have in all; None: no limit
    path_lengths  in tokens, in the order in which paths are preferred

    >>> [count_paths(3, limit, [100, 150, 50, 10]) for limit in (None, 1000, 299, 99)]
    [3, 3, 2, 1]
    """
    totals = accumulate(path_lengths[:parallel])
    return max(1, sum(kv_tokens is None or total <= kv_tokens for total in totals))


def count_new_exploits(width: int, share: float, num_focused: int) -> int:
    """Returns how many of the next paths begin as exploitation, so that a share of `width` is, those in focus included.

    >>> count_new_exploits(4, 0.5, 0), count_new_exploits(4, 0.5, 1), count_new_exploits(4, 0.5, 3)
    (2, 1, 0)
    """
    return max(0, math.floor(width * share) - num_focused)


def stays_in_focus(
    value: float, earlier: Sequence[float], *, exploits: bool, stop_share: float, seek_share: float
) -> bool:
    """Returns whether the best child of a path is continued at once.

    A path of exploitation stops early where its value is not above `stop_share` of the mean of `earlier`, those of the
    paths that were continued before; one of exploration is sought deeper where it is at least `seek_share` of that
    mean. While there are fewer than two earlier ones exploitation goes on; without any, exploration does not.

    >>> earlier = [0.5, 1.0]
    >>> [stays_in_focus(v, earlier, exploits=True, stop_share=0.8, seek_share=0.8) for v in (0.6, 0.61)]
    [False, True]
    >>> [stays_in_focus(v, earlier, exploits=False, stop_share=0.8, seek_share=0.8) for v in (0.59, 0.61)]
    [False, True]
    """
    if exploits:
        return len(earlier) < 2 or value > stop_share * statistics.fmean(earlier)
    return bool(earlier) and value >= seek_share * statistics.fmean(earlier)
