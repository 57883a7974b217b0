"""Groups running sequences that read a common prefix from the cache, so that attention reads its keys once.

A node's keys can be read once for all sequences below it. A long prefix shared by few or a short one shared by many:
each group also costs time by itself. The rule below minimises keys read plus a charge per group, over the cache's tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from decoding.kv.prefix_cache import RadixNode
from decoding.kv.sequence import TokenSequence

_GROUP_COST = 64  # keys that could be read in the time that one more group takes


@dataclass(frozen=True)
class SharedPrefixGroup:
    """Sequences that read the same slots for their first `shared_length` tokens; `members` are their indices."""

    members: tuple[int, ...]
    shared_length: int


def group_by_prefix(sequences: Sequence[TokenSequence]) -> list[SharedPrefixGroup]:
    """Returns a partition of the sequences; O(sequences x depth of the cache).

    Valid as long as the sequences keep their locks, whatever happens to the rest of the cache.
    """
    below: dict[int, list[int]] = {}
    children: dict[int, dict[int, RadixNode]] = {}
    groups: list[SharedPrefixGroup] = []
    nodes: dict[int, RadixNode] = {}  # parents before children
    for i, sequence in enumerate(sequences):
        path = sequence.prefix_node.path_from_root() if sequence.prefix_node is not None else []
        if not path:
            groups.append(SharedPrefixGroup((i,), 0))
            continue
        # only nodes on a path of these sequences are visited, not the whole tree
        for node, child in zip(path, [*path[1:], None], strict=True):
            nodes.setdefault(id(node), node)
            below.setdefault(id(node), []).append(i)
            if child is not None:
                children.setdefault(id(node), {})[id(child)] = child
    # children first, and no recursion: a search by steps makes paths of thousands of nodes
    best: dict[int, _Partition] = {}
    for key, node in reversed(nodes.items()):
        inner = [(below[each], best.pop(each)) for each in children.get(key, ())]
        best[key] = _cheapest_partition(node.end, below[key], inner)
    # what no parent took is of the roots
    return groups + [group for partition in reversed(best.values()) for group in partition.groups]


class _Partition(NamedTuple):
    """Groups of the sequences below a node, and their cost: -(keys saved) + charge per group."""

    cost: int
    groups: list[SharedPrefixGroup]


def _cheapest_partition(end: int, members: list[int], inner: Sequence[tuple[list[int], _Partition]]) -> _Partition:
    """Returns the cheapest partition of the members of a node that ends at `end`, from those of its children."""
    # all but one member save the node's keys; one group is charged
    together = _Partition(_GROUP_COST - (len(members) - 1) * end, [SharedPrefixGroup(tuple(members), end)])
    if len(members) == 1 or not inner:
        return together
    cost, groups, in_child = 0, list[SharedPrefixGroup](), set[int]()
    for members_of_child, partition in inner:
        cost += partition.cost
        groups += partition.groups
        in_child.update(members_of_child)
    rest = tuple(i for i in members if i not in in_child)  # sequences whose cached prefix ends at this node
    if rest:
        cost += _GROUP_COST - (len(rest) - 1) * end
        groups.append(SharedPrefixGroup(rest, end))
    return _Partition(cost, groups) if cost < together.cost else together
