"""Counts every run of tokens in a growing set of texts, and the tokens that follow it.

A suffix automaton, not the suffix tree of the papers: it answers the same questions (the classes of runs that end at
the same places are the nodes of the tree of reversed texts), needs a few steps per appended token however deep the
matches go, and it knows the longest matches of every text's own end without looking: they are its links. A suffix
trie, cut at depth 64, would take 64 steps a token, and as many nodes.

Texts share their beginnings: whatever was appended once is found, not counted again, when a new text starts with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

ROOT = 0
_probability = itemgetter(1)


class SuffixTree:
    """Nodes are ints and stay valid for ever. A node stands for the runs of tokens that end at the same places, each a
    suffix of the longest; `ROOT` for the empty run, after no token.

    >>> tree = SuffixTree()
    >>> for text in [(1, 2, 3), (1, 2, 4, 1, 2)]:
    ...     end, known = tree.find_prefix(text)
    ...     for token in text[known:]:
    ...         end = tree.append_token(end, token)
    >>> known, tree.occurrence_count(tree.find_node((1, 2))), tree.child_nodes(tree.find_node((2,))).keys()
    (2, 2, dict_keys([3, 4]))
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]  # the longest suffix that occurs at more places
        self._length = [0]  # of the longest run
        self._count = [0]  # places where it ends, each appended token being one
        self._num_continued = [0]  # tokens appended after it: the counts of its children, summed
        self._is_text = [True]  # whether the longest run is the beginning of a text
        self._tokens = 0

    def __len__(self) -> int:
        """Tokens appended."""
        return self._tokens

    def occurrence_count(self, node: int) -> int:
        """Returns the number of occurrences of the runs of `node`."""
        return self._count[node]

    def continuation_count(self, node: int) -> int:
        """How often something might have followed: the places, or, as a place where texts fork has several
        continuations, what did follow if that is more. Never less than the counts of the children, summed."""
        return max(self._count[node], self._num_continued[node])

    def child_nodes(self, node: int) -> Mapping[int, int]:
        """Token -> node, for every token that ever followed; a view."""
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
        """The longest beginning of `text` that is the beginning of a text appended before: its node and length."""
        end, known = ROOT, 0
        for token in text:
            node = self._next[end].get(token, -1)
            if node < 0 or self._length[node] != known + 1 or not self._is_text[node]:
                break
            end, known = node, known + 1
        return end, known

    def suffix_matches(self, end: int, longest: int) -> Iterator[tuple[int, int]]:
        """For the text that ends in `end`: nodes of its suffixes after which something followed before, longest first,
        each with the length of its longest suffix that is no longer than `longest`."""
        length, link, following = self._length, self._link, self._next
        node = end
        while node > ROOT and length[link[node]] >= longest:
            node = link[node]
        while node > ROOT:
            if following[node]:
                yield node, min(length[node], longest)
            node = link[node]

    def path_score(self, node: int, *, steps: int, least: float) -> float:
        """The sum of path probabilities along the most frequent continuation of `node`: at most `steps` tokens, each
        path of probability `least` or more. Of equally frequent tokens the first seen counts as the most frequent."""
        following, count, num_continued = self._next, self._count, self._num_continued
        probability, total = 1.0, 0.0
        for _ in range(steps):
            children = following[node].values()
            if not children:
                break
            child = max(children, key=count.__getitem__) if len(children) > 1 else next(iter(children))
            probability *= count[child] / max(count[node], num_continued[node])
            if probability < least:
                break
            total += probability
            node = child
        return total

    def top_continuations(self, node: int, *, width: int, least: float) -> list[tuple[int, float]]:
        """Returns up to `width` tokens after `node` with probabilities of at least `least`, most likely first."""
        chances, count = self.continuation_count(node), self._count
        pairs = [(token, count[child] / chances) for token, child in self._next[node].items()]
        if len(pairs) > 1:
            pairs.sort(key=_probability, reverse=True)
        return [pair for pair in pairs[:width] if pair[1] >= least]

    def append_token(self, end: int, token: int) -> int:
        """Counts one more `token` after the text that ends in `end`; where the text ends now. *Mutates*."""
        new = self._extend_text(end, token)
        self._is_text[new] = True
        self._tokens += 1
        following, link, count, num_continued = self._next, self._link, self._count, self._num_continued
        node, last = end, -1
        while node >= 0:  # every suffix of the text before, with the token after it
            num_continued[node] += 1
            longer = following[node][token]
            if longer != last:
                count[longer] += 1
                last = longer
            node = link[node]
        return new

    def _extend_text(self, end: int, token: int) -> int:
        """The node of the text ending in `end` and `token`: whole texts are always the longest run of their node."""
        following, link, length = self._next, self._link, self._length
        known = following[end].get(token, -1)
        if known >= 0:
            return known if length[known] == length[end] + 1 else self._split_node(end, token, known)
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
        """Parts from `target` the runs that are those of `node` and `token`: from now on they end at more places."""
        following, link = self._next, self._link
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
