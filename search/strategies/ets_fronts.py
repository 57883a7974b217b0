"""Solves the program of ETS exactly, in microseconds per leaf, where few clusters are contested.

A dynamic program from the leaves to the root. What a subtree offers to the rest of the tree is its front: options, each
with a value, the clusters that it covers, and the leaves that it keeps. An option is dropped if another one is worth at
least as much even after the rest of the tree has to do without the reward of each cluster that only the first covers.
So few options are left: a leaf that pays for its nodes is kept wherever its parent is, and one that does not pay with
the reward of its cluster is never kept. Two things shorten fronts further. What is certain from values alone is found
first, so that a cluster certain at a node is open for none of the leaves below it. And the reward of a cluster becomes
part of the value at the lowest node that has all of its leaves below, where the cluster no longer tells options apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile
from operator import itemgetter, or_
from typing import TypeAlias

from search.strategies.ets_program import EtsProgram, KeptLeaves

# What fronts may cost in pairs and comparisons of options, of some 65 ns each: beyond it HiGHS is faster.
_MOST_WORK = 20_000
_MOST_WORK_PER_LEAF = 500

LeafTree: TypeAlias = "int | tuple[LeafTree, LeafTree] | None"
Option = tuple[float, int, LeafTree]  # value, bits of the clusters covered, leaves
Front = list[Option]
_NOTHING: Option = (0.0, 0, None)


def solve_by_fronts(program: EtsProgram) -> KeptLeaves | None:
    """Solves a program to optimality; None where its fronts grow so long that HiGHS is faster."""
    tree = _read_tree(program)
    offers: list[list[Front]] = [[] for _ in range(tree.root + 1)]  # per node, fronts of its leaf and its children
    for leaf, path in enumerate(program.paths):
        offers[path[-1]].append([(program.values[leaf], 0, leaf)])
    work_left = _MOST_WORK + _MOST_WORK_PER_LEAF * len(program.paths)
    for node in [*reversed(tree.parents), tree.root]:
        here = offers[node] or [[]]
        front, *others = here if len(here) == 1 else _drop_worse_offers(here)
        for other in others:
            pairs = len(front) * len(other)
            if pairs > 1 and pairs + _count_sets(front, other, most=pairs) ** 2 // 2 > work_left:
                return None
            front = tree.drop_worse([(a + b, c | d, (e, f)) for a, c, e in front for b, d, f in other])
            work_left -= pairs + len(front) ** 2 // 2
        offers[node] = []
        front = tree.pay_for(node, front)
        if front:
            offers[tree.parents.get(node, tree.root)].append(front)
    [[(_, _, leaf_tree)]] = offers[tree.root]  # no cluster is open there: one option is the best
    leaves = _list_leaves(leaf_tree)
    return KeptLeaves(leaves, program.objective_value(leaves), 0.0, "fronts")


def _count_sets(front: Front, other: Front, most: int) -> int:
    """Sets of clusters that options of both together can cover, at most."""
    clusters = reduce(or_, (option[1] for option in (*front, *other)))
    return min(most, 1 << clusters.bit_count())


def _drop_worse_offers(offers: list[Front]) -> list[Front]:
    """Drops offers of one option that only its clusters can make worth it, where another child has them for less."""
    best: dict[int, Front] = {}
    rest: list[Front] = []
    for front in offers:
        if len(front) == 2 and front[0] is _NOTHING:
            best[front[1][1]] = max(front, best.get(front[1][1], front), key=lambda offer: offer[1][0])
        else:
            rest.append(front)
    return rest + list(best.values())


@dataclass(frozen=True)
class _ProgramTree:
    """Tree of a program, its root a node of price 0; sets of clusters are bits of a number.

    One more bit means that a leaf is kept. Its reward exceeds all others, as at least one leaf must be kept.

    parents           of each node but the root, parents before their children
    prices            per node
    is_certain        per node, whether it is kept wherever its parent is, by values alone
    certain_clusters  per node, the clusters covered wherever the node is kept, by values alone
    clusters_above    per node, the clusters certain at a node above it
    closed_clusters   per node, the clusters that no leaf outside of its subtree can cover
    reward            of a cluster
    any_leaf          bit for a leaf that is kept
    any_reward        its reward
    """

    root: int
    parents: dict[int, int]
    prices: Sequence[float]
    is_certain: Sequence[bool]
    certain_clusters: Sequence[int]
    clusters_above: Sequence[int]
    closed_clusters: Sequence[int]
    reward: float
    any_leaf: int
    any_reward: float

    def pay_for(self, node: int, front: Front) -> Front:
        """Front of a node's subtree, given the joined fronts of its children; empty if nothing in it is ever kept."""
        price, gained = self.prices[node], self.certain_clusters[node]
        open_here, closed = ~self.clusters_above[node], self.closed_clusters[node]
        # what is certain is not decided again, by a sum in another order and so with another rounding
        options: Front = [] if self.is_certain[node] else [_NOTHING]
        for value, clusters, leaves in front:
            covered = (clusters | gained) & open_here
            reward = self.reward_of(covered & closed) if covered & closed else 0.0
            options.append((value - price + reward, covered & ~closed, leaves))
        best = self.drop_worse(options)
        return [] if best == [_NOTHING] else best

    def drop_worse(self, options: Front) -> Front:
        """Drops options that another one replaces whatever the rest of the tree covers. *Mutates* their order."""
        if len(options) <= 2:  # as most are: without the loops
            return options if len(options) == 1 else self._drop_worse_of_two(*options)
        options.sort(key=itemgetter(0), reverse=True)
        best: Front = []
        sets: set[int] = set()
        for option in options:
            value, clusters, _ = option
            if clusters in sets:  # with a higher value
                continue
            sets.add(clusters)
            with_one_more = value + self.reward  # a cluster that the better option lacks is worth at least that
            for better, covered, _ in best:
                lacking = clusters & ~covered
                if not lacking or (with_one_more <= better and value + self.reward_of(lacking) <= better):
                    break
            else:
                best.append(option)
        return best

    def _drop_worse_of_two(self, option: Option, other: Option) -> Front:
        better, worse = (option, other) if option[0] >= other[0] else (other, option)
        lacking = worse[1] & ~better[1]
        return [better, worse] if lacking and worse[0] + self.reward_of(lacking) > better[0] else [better]

    def reward_of(self, clusters: int) -> float:
        """Reward of a set of clusters."""
        if not clusters:
            return 0.0
        return self.reward * clusters.bit_count() + (self.any_reward if clusters & self.any_leaf else 0.0)


def _read_tree(program: EtsProgram) -> _ProgramTree:
    num_clusters = program.num_clusters
    any_leaf = 1 << num_clusters
    cluster_bits = [1 << number for number in program.number_clusters()] or [0] * len(program.paths)
    root = len(program.costs)
    prices = [*map(program.node_price, range(root)), 0.0]
    parents: dict[int, int] = {}
    gains, certain = [-price for price in prices], [0] * (root + 1)
    for value, path, bit in zip(program.values, program.paths, cluster_bits, strict=True):
        parents.update(zip(path, [root, *path], strict=False))
        gains[path[-1]] += value
        certain[path[-1]] |= bit | any_leaf
    for node, parent in reversed(parents.items()):
        if gains[node] >= 0:
            gains[parent] += gains[node]
            certain[parent] |= certain[node]
    above = [0] * (root + 1)
    for node, parent in parents.items():
        above[node] = above[parent] | certain[parent]
    closed = [0] * root + [-1]  # all, at the root
    is_certain = [gain >= 0 for gain in gains]
    for cluster, node in _find_lowest_nodes(program, cluster_bits, is_certain, known=certain[root]):
        closed[node] |= cluster
    reward = program.coverage / num_clusters if num_clusters else 0.0
    any_reward = 1.0 + sum(program.values) + sum(map(abs, prices)) + program.coverage
    return _ProgramTree(root, parents, prices, is_certain, certain, above, closed, reward, any_leaf, any_reward)


def _find_lowest_nodes(
    program: EtsProgram, cluster_bits: Sequence[int], is_certain: Sequence[bool], known: int
) -> Iterator[tuple[int, int]]:
    """Yields each cluster with the lowest node below which all leaves cover it; not those that are known, or only the
    root has."""
    paths: dict[int, Sequence[int]] = {}
    for path, cluster in zip(program.paths, cluster_bits, strict=True):
        if cluster & ~known:
            end = len(path)
            while end and is_certain[path[end - 1]]:
                end -= 1  # the cluster is certain at the node above
            if cluster in paths:
                both = zip(paths[cluster], path[:end], strict=False)
                paths[cluster] = [node for node, other in takewhile(lambda pair: pair[0] == pair[1], both)]
            else:
                paths[cluster] = path[:end]
    return ((cluster, path[-1]) for cluster, path in paths.items() if path)


def _list_leaves(leaf_tree: LeafTree) -> tuple[int, ...]:
    leaves, stack = [], [leaf_tree]
    while stack:
        part = stack.pop()
        if isinstance(part, tuple):
            stack += part
        elif part is not None:
            leaves.append(part)
    return tuple(sorted(leaves))
