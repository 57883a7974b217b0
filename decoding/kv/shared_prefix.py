"""Groups running sequences that read a common prefix from the cache, so that attention reads its keys once.

A node's keys can be read once for all sequences below it. A long prefix shared by few or a short one shared by many:
each group also costs time by itself. The rule below minimises keys read plus a charge per group, over the cache's tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    roots: dict[int, RadixNode] = {}
    for i, sequence in enumerate(sequences):
        path = sequence.prefix_node.path_from_root() if sequence.prefix_node is not None else []
        if not path:
            groups.append(SharedPrefixGroup((i,), 0))
            continue
        roots[id(path[0])] = path[0]
        # only nodes on a path of these sequences are visited, not the whole tree
        for node, child in zip(path, [*path[1:], None], strict=True):
            below.setdefault(id(node), []).append(i)
            if child is not None:
                children.setdefault(id(node), {})[id(child)] = child
    for node in roots.values():
        groups.extend(_cheapest_partition(node, below, children)[1])
    return groups


def _cheapest_partition(
    node: RadixNode, below: Mapping[int, list[int]], children: Mapping[int, Mapping[int, RadixNode]]
) -> tuple[int, list[SharedPrefixGroup]]:
    """Returns the cheapest partition of the sequences below `node`, and its cost: -(keys saved) + charge per group."""
    members = below[id(node)]
    # all but one member save the node's keys; one group is charged
    together = _GROUP_COST - (len(members) - 1) * node.end
    inner = children.get(id(node), {})
    if len(members) == 1 or not inner:
        return together, [SharedPrefixGroup(tuple(members), node.end)]
    cost, groups, in_child = 0, [], set()
    for child in inner.values():
        child_cost, child_groups = _cheapest_partition(child, below, children)
        cost += child_cost
        groups += child_groups
        in_child.update(below[id(child)])
    rest = tuple(i for i in members if i not in in_child)  # sequences whose cached prefix ends at this node
    if rest:
        cost += _GROUP_COST - (len(rest) - 1) * node.end
        groups.append(SharedPrefixGroup(rest, node.end))
    return (cost, groups) if cost < together else (together, [SharedPrefixGroup(tuple(members), node.end)])
