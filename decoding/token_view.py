"""Shows the tokens of a sequence that grows, as they are now, without copying them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from decoding.core import Tokens


class TokenView(Sequence[int]):
    """The ids of one or more lists in a row, up to their present lengths. The lists may only grow.

    A long thought has tens of thousands of tokens, of which a drafter reads the last few: slices are tuples and cost
    their own length.

    >>> text = [1, 2, 3]
    >>> view = TokenView(text, [4])
    >>> text.append(9)
    >>> len(view), view[-2:], view[0], list(view)
    (4, (3, 4), 1, [1, 2, 3, 4])
    """

    __slots__ = ("_length", "_parts")
    _parts: list[tuple[Sequence[int], int]]
    _length: int

    def __init__(self, *parts: Sequence[int]) -> None:
        self._parts, self._length = [], 0
        for part in parts:
            if length := len(part):
                self._parts.append((part, length))
                self._length += length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Tokens: ...
    def __getitem__(self, index: int | slice) -> int | Tokens:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step == 1 and len(self._parts) == 1:
                return tuple(self._parts[0][0][start:stop])
            if step != 1:
                return tuple(self)[index]
            return tuple(self._iterate(start, stop))
        at = index + self._length if index < 0 else index
        if 0 <= at < self._length:
            for part, length in self._parts:
                if at < length:
                    return part[at]
                at -= length
        raise IndexError(index)

    def __iter__(self) -> Iterator[int]:
        return self._iterate(0, self._length)

    def _iterate(self, start: int, stop: int) -> Iterator[int]:
        pieces = []
        for part, length in self._parts:
            if start < length and stop > 0:
                # a slice of the list, not `islice` over it: that would walk to its beginning
                pieces.append(part[max(start, 0) : min(stop, length)])
            start, stop = start - length, stop - length
        return chain.from_iterable(pieces)
