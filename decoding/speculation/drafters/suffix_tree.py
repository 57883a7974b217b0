"""Counts every run of tokens in a growing set of texts, and the tokens that follow it.

It is a suffix automaton, not the suffix tree of the papers. It answers the same queries: its nodes are the classes of
runs that end at the same positions, which are the nodes of the suffix tree of the reversed texts. An appended token
takes a few steps at any depth of the matches, and the links of a text's end are its longest matches, without a search.
A suffix trie that is cut at depth 64 would take 64 steps per token, and as many nodes.

Texts share their beginnings: a new text that starts with appended tokens does not count them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

ROOT = 0
_probability = itemgetter(1)


class SuffixTree:
    """Suffix automaton with counts. Nodes are ints and stay valid.

    A node represents the runs of tokens that end at the same positions, each a suffix of the longest one; `ROOT`
    represents the empty run.

    >>> tree = SuffixTree()
    >>> for text in [(1, 2, 3), (1, 2, 4, 1, 2)]:
    ...     end, length = tree.find_prefix(text)
    ...     for token in text[length:]:
    ...         end = tree.append_token(end, token)
    >>> length, tree.occurrence_count(tree.find_node((1, 2))), tree.child_nodes(tree.find_node((2,))).keys()
    (2, 2, dict_keys([3, 4]))
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]  # the node of the longest suffix that occurs at more positions
        self._length = [0]  # of the longest run
        self._count = [0]  # positions where the run ends; every appended token is one
        self._num_continued = [0]  # tokens appended after it: the sum of its children's counts
        self._is_text = [True]  # whether the longest run is the beginning of a text
        self._tokens = 0

    def __len__(self) -> int:
        """Returns the number of appended tokens."""
        return self._tokens

    def occurrence_count(self, node: int) -> int:
        """Returns the number of occurrences of the runs of `node`."""
        return self._count[node]

    def continuation_count(self, node: int) -> int:
        """Returns the number of occurrences of `node` or of tokens after them, whichever is larger."""
        # A position where texts fork counts once but has several continuations, so the count alone would let relative
        # frequencies sum to more than 1. The last position of a text counts although no token follows.
        return max(self._count[node], self._num_continued[node])

    def child_nodes(self, node: int) -> Mapping[int, int]:
        """Returns token -> node for every token that followed; a view."""
        return self._next[node]

    def find_node(self, tokens: Sequence[int]) -> int:
        """Returns the node of a run, -1 if it never occurred."""
        node = ROOT
        for token in tokens:
            node = self._next[node].get(token, -1)
            if node < 0:
                break
        return node

    def find_prefix(self, text: Sequence[int]) -> tuple[int, int]:
        """Returns node and length of the longest beginning of `text` that is the beginning of an appended text."""
        end, length = ROOT, 0
        for token in text:
            node = self._next[end].get(token, -1)
            # A longer run of the node means that this one occurs only after other tokens, not at a text's beginning.
            if node < 0 or self._length[node] != length + 1 or not self._is_text[node]:
                break
            end, length = node, length + 1
        return end, length

    def suffix_matches(self, end: int, longest: int) -> Iterator[tuple[int, int]]:
        """Yields the nodes of those suffixes of a text that were continued before, longest first.

        `end` is the node of the text. Each node comes with the length of its longest suffix up to `longest`.
        """
        length, link, following = self._length, self._link, self._next
        node = end
        # A node has the runs of lengths (length[link], length]: skip those with all of them above `longest`.
        while node > ROOT and length[link[node]] >= longest:
            node = link[node]
        while node > ROOT:
            if following[node]:
                yield node, min(length[node], longest)
            node = link[node]

    def path_score(self, node: int, *, steps: int, least: float) -> float:
        """Returns the sum of path probabilities along the most frequent continuation of `node`.

        At most `steps` tokens, while the probability of the path is at least `least`.
        """
        following, count, num_continued = self._next, self._count, self._num_continued
        probability, total = 1.0, 0.0
        for _ in range(steps):
            children = following[node].values()
            if not children:
                break
            # `max` takes the first of equals: the token that was appended first (dicts keep insertion order).
            child = max(children, key=count.__getitem__) if len(children) > 1 else next(iter(children))
            probability *= count[child] / max(count[node], num_continued[node])  # `continuation_count`, without a call
            if probability < least:
                break
            total += probability
            node = child
        return total

    def top_continuations(self, node: int, *, width: int, least: float) -> list[tuple[int, float]]:
        """Returns up to `width` tokens after `node` with probabilities of at least `least`, most likely first."""
        total, count = self.continuation_count(node), self._count
        pairs = [(token, count[child] / total) for token, child in self._next[node].items()]
        if len(pairs) > 1:
            pairs.sort(key=_probability, reverse=True)  # stable: of equals the token appended first, as in `path_score`
        return [pair for pair in pairs[:width] if pair[1] >= least]

    def append_token(self, end: int, token: int) -> int:
        """Counts one more `token` after the text that ends in `end`; returns its new end. *Mutates*."""
        new = self._extend_text(end, token)
        self._is_text[new] = True
        self._tokens += 1
        following, link, count, num_continued = self._next, self._link, self._count, self._num_continued
        node, last = end, -1
        while node >= 0:  # every suffix of the text, the empty one included, with the token after it
            num_continued[node] += 1
            longer = following[node][token]
            if longer != last:  # neighbours in the chain of links may lead to the same node, which counts once
                count[longer] += 1
                last = longer
            node = link[node]
        return new

    def _extend_text(self, end: int, token: int) -> int:
        """Returns the node of the text that ends in `end` with `token` after it. *Mutates*."""
        following, link, length = self._next, self._link, self._length
        child = following[end].get(token, -1)
        if child >= 0:
            # A whole text must be the longest run of its node: where longer ones share the node, it is split.
            return child if length[child] == length[end] + 1 else self._split_node(end, token, child)
        new = self._add_node(length[end] + 1, {}, ROOT)
        node = end
        while node >= 0 and token not in following[node]:
            following[node][token] = new
            node = link[node]
        if node >= 0:
            suffix = following[node][token]
            link[new] = suffix if length[suffix] == length[node] + 1 else self._split_node(node, token, suffix)
        return new

    def _split_node(self, node: int, token: int, target: int) -> int:
        """Splits off the runs of `target` that are a run of `node` and `token`; returns their node. *Mutates*.

        From now on they occur at more positions than the longer runs of `target`.
        """
        following, link = self._next, self._link
        # A copy of the children: the two nodes diverge with the next token.
        shorter = self._add_node(self._length[node] + 1, following[target].copy(), link[target])
        self._count[shorter], self._num_continued[shorter] = self._count[target], self._num_continued[target]
        link[target] = shorter
        while node >= 0 and following[node].get(token) == target:
            following[node][token] = shorter
            node = link[node]
        return shorter

    def _add_node(self, length: int, children: dict[int, int], link: int) -> int:
        self._next.append(children)
        self._length.append(length)
        self._link.append(link)
        self._count.append(0)
        self._num_continued.append(0)
        self._is_text.append(False)
        return len(self._next) - 1

    def assert_invariants(self) -> None:
        """Asserts that links shorten, that a suffix occurs at least as often, and that continuations add up."""
        for node, children in enumerate(self._next):
            assert self._num_continued[node] == sum(self._count[child] for child in children.values())
            assert all(self._length[child] > self._length[node] for child in children.values())
            if node != ROOT:
                link = self._link[node]
                assert self._length[link] < self._length[node]
                assert self._count[node] >= 1
                assert link == ROOT or self._count[link] >= self._count[node]
