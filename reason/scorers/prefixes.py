"""Tracks which prefixes of a problem's paths are scored, and plans the fewest tokens to read for the others.

This is how a reward model's prefix is reused: equal encodings are one `EncodedPrefix`, and a scored one is not read
again. The reader's own cache holds its KV.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from decoding.core import Tokens
from reason.scorers.base import Floats


@dataclass(eq=False)
class EncodedPrefix:
    """An encoded path: the piece of its last step, linked to the path without it. Equal paths are one object.

    parent    the path without the last step; None for the root, which has the prompt's encoding as its piece
    end       length of the whole encoding, of which `piece` is the last `len(piece)` tokens
    outputs   the head's outputs over the piece, `[len(piece), num_outputs]`, once it was read; then it has a score too
    """

    parent: EncodedPrefix | None
    piece: Tokens
    end: int
    score: float | None = None
    outputs: Floats | None = None
    children: dict[Tokens, EncodedPrefix] = field(default_factory=dict)

    @classmethod
    def make_root(cls, prompt: Tokens) -> EncodedPrefix:
        """Returns the path without steps. It has no score and needs none."""
        return cls(None, prompt, len(prompt))

    def get_child(self, piece: Tokens) -> EncodedPrefix:
        """Returns the path with one more step. *Mutates* self if it is new. Raises: ValueError for an empty piece."""
        if not piece:
            raise ValueError("a step must encode to at least one token")
        if piece not in self.children:
            self.children[piece] = EncodedPrefix(self, piece, self.end + len(piece))
        return self.children[piece]

    @property
    def is_scored(self) -> bool:
        """Whether nothing must be read for this prefix; true for the root."""
        return self.parent is None or self.score is not None

    def path_from_root(self) -> list[EncodedPrefix]:
        """Returns the prefixes from the root to this one, both included."""
        path = [self]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        return path[::-1]

    def encoded_tokens(self) -> Tokens:
        """Returns the whole encoding, `[0, end)`."""
        return tuple(token for prefix in self.path_from_root() for token in prefix.piece)


@dataclass(frozen=True)
class PrefixReading:
    """One sequence for the reader.

    [0, start)           already scored, or scored by an earlier reading of the same plan
    [start, len(tokens)) the pieces of `prefixes`, shortest prefix first, adjacent
    """

    tokens: Tokens
    start: int
    prefixes: tuple[EncodedPrefix, ...]

    def output_slices(self) -> list[slice]:
        """Returns, for every prefix, the rows of the reader's outputs that belong to its piece."""
        ends = [prefix.end - self.start for prefix in self.prefixes]
        return [slice(end - len(p.piece), end) for p, end in zip(self.prefixes, ends, strict=True)]


def plan_readings(paths: Iterable[EncodedPrefix]) -> list[PrefixReading]:
    """Returns readings in which every unscored prefix of every path occurs exactly once. Does not mutate the paths.

    >>> root = EncodedPrefix.make_root((1, 2))
    >>> a = root.get_child((3,)); b, c = a.get_child((4, 5)), a.get_child((6,))
    >>> [(r.tokens, r.start) for r in plan_readings([a, b, c, b])]
    [((1, 2, 3, 4, 5), 2), ((1, 2, 3, 6), 3)]
    """
    unscored: dict[EncodedPrefix, None] = {}  # a dict keeps the order
    inner: set[EncodedPrefix] = set()
    for path in paths:
        for prefix in _unscored_prefixes(path):
            unscored[prefix] = None
            if prefix.parent is not None:
                inner.add(prefix.parent)
    planned: set[EncodedPrefix] = set()
    readings = []
    for leaf in unscored:
        if leaf in inner:
            continue
        chain = [prefix for prefix in _unscored_prefixes(leaf) if prefix not in planned]
        planned.update(chain)
        readings.append(PrefixReading(leaf.encoded_tokens(), chain[0].end - len(chain[0].piece), tuple(chain)))
    return readings


def _unscored_prefixes(path: EncodedPrefix) -> list[EncodedPrefix]:
    """The unscored prefixes of a path, shortest first: a tail of the path, because scores are set front to back."""
    chain: list[EncodedPrefix] = []
    while not path.is_scored and path.parent is not None:
        chain.append(path)
        path = path.parent
    return chain[::-1]
