"""The tree that tuning starts from, in order of what its places may be worth."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from decoding.speculation.interfaces import Template

_DEEPER = 0.8  # worth of a first child relative to its parent
_WIDTH = 10  # as many tokens as a context keeps


def static_tree(nodes: int = 625, depth: int = 20) -> Template:
    """The `nodes` worthiest places, if a child of rank r is worth `_DEEPER / (r + 1)^2` of its parent.

    The published start of tuning has 625 nodes and is 20 deep (arXiv 2506.04708); its shape is not told, this is ours.

    >>> static_tree(8)
    Template(parents=(-1, 0, 1, 2, 3, 4, 5, -1), ranks=(0, 0, 0, 0, 0, 0, 0, 1))
    """
    parents: list[int] = []
    ranks: list[int] = []
    tie = count()  # of equals the earlier first
    # minus the worth, tie, parent, rank, depth, the parent's worth
    open_places = [(-_DEEPER, next(tie), -1, 0, 1, 1.0)]
    while open_places and len(parents) < nodes:
        worth, _, parent, rank, level, above = heappop(open_places)
        parents.append(parent)
        ranks.append(rank)
        if rank + 1 < _WIDTH:
            heappush(open_places, (-above * _DEEPER / (rank + 2) ** 2, next(tie), parent, rank + 1, level, above))
        if level < depth:
            heappush(open_places, (worth * _DEEPER, next(tie), len(parents) - 1, 0, level + 1, -worth))
    return Template(tuple(parents), tuple(ranks))
