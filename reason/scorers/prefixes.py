"""Which paths of a problem have been scored, and the least that must be read to score the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from decoding.core import Tokens
from reason.scorers.base import Floats


@dataclass(eq=False)
class Prefix:
    """An encoded path: its last piece, hung from the path without it. Equal paths are one object.

    end       length of the whole encoding; the piece is the last `len(piece)` of it
    outputs   the reward model's over the piece, `[len(piece), outputs]`, once it was read; then there is a score too
    """

    parent: Prefix | None
    piece: Tokens
    end: int
    score: float | None = None
    outputs: Floats | None = None
    children: dict[Tokens, Prefix] = field(default_factory=dict)

    @classmethod
    def root(cls, begin: Tokens) -> Prefix:
        """The path without steps. It has no score and needs none."""
        return cls(None, begin, len(begin))

    def child(self, piece: Tokens) -> Prefix:
        """The path one step further. *Mutates* self if it is new. Raises: ValueError for an empty piece."""
        if not piece:
            raise ValueError("a step must encode to at least one token")
        if piece not in self.children:
            self.children[piece] = Prefix(self, piece, self.end + len(piece))
        return self.children[piece]

    @property
    def scored(self) -> bool:
        """Whether nothing is left to read for this prefix; true for the root."""
        return self.parent is None or self.score is not None

    def path(self) -> list[Prefix]:
        """From the root, itself included, to here."""
        path = [self]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        return path[::-1]

    def tokens(self) -> Tokens:
        """The whole encoding, `[0, end)`."""
        return tuple(token for prefix in self.path() for token in prefix.piece)


@dataclass(frozen=True)
class Reading:
    """One sequence for the reader.

    [0, start)   already scored, or another reading of the same plan scores it
    [start, ..)  the pieces of `prefixes`, shortest first, one right after the other
    """

    tokens: Tokens
    start: int
    prefixes: tuple[Prefix, ...]

    def rows(self) -> list[slice]:
        """For every prefix, which rows of the reader's answer are its piece's."""
        ends = [prefix.end - self.start for prefix in self.prefixes]
        return [slice(end - len(p.piece), end) for p, end in zip(self.prefixes, ends, strict=True)]


def plan(paths: Iterable[Prefix]) -> list[Reading]:
    """Readings in which every unscored prefix of every path occurs exactly once. Does not mutate the paths.

    >>> root = Prefix.root((1, 2))
    >>> a = root.child((3,)); b, c = a.child((4, 5)), a.child((6,))
    >>> [(r.tokens, r.start) for r in plan([a, b, c, b])]
    [((1, 2, 3, 4, 5), 2), ((1, 2, 3, 6), 3)]
    """
    wanted: dict[Prefix, None] = {}
    inner: set[Prefix] = set()
    for path in paths:
        for prefix in _unscored(path):
            wanted[prefix] = None
            if prefix.parent is not None:
                inner.add(prefix.parent)
    claimed: set[Prefix] = set()
    readings = []
    for leaf in wanted:
        if leaf in inner:
            continue
        chain = [prefix for prefix in _unscored(leaf) if prefix not in claimed]
        claimed.update(chain)
        readings.append(Reading(leaf.tokens(), chain[0].end - len(chain[0].piece), tuple(chain)))
    return readings


def _unscored(path: Prefix) -> list[Prefix]:
    """The unscored prefixes of a path, shortest first. Scores arrive front to back, so they are its tail."""
    chain: list[Prefix] = []
    while not path.scored and path.parent is not None:
        chain.append(path)
        path = path.parent
    return chain[::-1]
