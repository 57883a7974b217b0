"""Which running sequences read a common prefix together.

Sequences that borrow from the same nodes of the prefix cache can read those nodes' keys once. Reading a
long prefix together with few others or a short one with many is a trade; each group costs something by
itself. The rule below minimises keys read plus a charge per group, over the cache's own tree.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from decoding.kv.prefix_cache import Node
from decoding.sequence import Sequence

_GROUP_COST = 64  # keys one could read in the time a group takes by itself


@dataclass(frozen=True)
class Group:
    """`members` (indices into what was given) all see the same pages for their first `shared` tokens."""

    members: tuple[int, ...]
    shared: int


def group_by_prefix(sequences: Items[Sequence]) -> list[Group]:
    """A partition of the sequences; O(sequences x depth of the cache).

    Valid as long as the sequences keep their locks, whatever happens to the rest of the cache.
    """
    below: dict[int, list[int]] = {}
    children: dict[int, dict[int, Node]] = {}
    loose: list[Group] = []
    roots: dict[int, Node] = {}
    for i, sequence in enumerate(sequences):
        path = sequence.node.path() if sequence.node is not None else []
        if not path:
            loose.append(Group((i,), 0))
            continue
        roots[id(path[0])] = path[0]
        for node, child in zip(path, [*path[1:], None], strict=True):
            below.setdefault(id(node), []).append(i)
            if child is not None:
                children.setdefault(id(node), {})[id(child)] = child
    groups = loose
    for node in roots.values():
        groups.extend(_best(node, below, children)[1])
    return groups


def _best(node: Node, below: dict[int, list[int]], children: dict[int, dict[int, Node]]) -> tuple[int, list[Group]]:
    """The cheapest partition of the sequences below `node`, and its cost: -(keys saved) + charge per group."""
    members = below[id(node)]
    together = _GROUP_COST - (len(members) - 1) * node.end
    inner = children.get(id(node), {})
    if len(members) == 1 or not inner:
        return together, [Group(tuple(members), node.end)]
    cost, groups, placed = 0, [], set()
    for child in inner.values():
        part, found = _best(child, below, children)
        cost += part
        groups += found
        placed.update(below[id(child)])
    rest = tuple(i for i in members if i not in placed)
    if rest:
        cost += _GROUP_COST - (len(rest) - 1) * node.end
        groups.append(Group(rest, node.end))
    return (cost, groups) if cost < together else (together, [Group(tuple(members), node.end)])
