"""Records the most likely tokens at every place of a search, for answers that show them.

The distribution of the next token depends on nothing but the tokens before it, so a place is found again by these,
wherever the search has cut, joined and moved what the engine wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from decoding.core import Generation, GenerationRequest, Matrix, TokenGenerator, TokenIds, Tokens
from reason.problem import LikelyToken

_START = 0


@dataclass
class TopTokens:
    """The most likely tokens behind prefixes, `num` at most.

    Prefixes are kept as their 64-bit hash: of a million of them, two are alike with a probability of one in 10^7.

    >>> import numpy as np
    >>> top = TopTokens(2)
    >>> top.add((5,), (7, 8), np.array([[7, 9], [8, -1]]), np.log(np.array([[0.5, 0.25], [1.0, np.nan]])))
    >>> [[token.id for token in row] for row in top.find((5, 7, 8), 1)]
    [[7, 9], [8]]
    >>> top.find((6, 7), 1)
    [[]]
    """

    num: int
    _rows: dict[int, tuple[TokenIds, Matrix, int]] = field(default_factory=dict, repr=False)

    def add(self, prefix: Tokens, tokens: Tokens, ids: TokenIds, logprobs: Matrix) -> None:
        """Adds what was likely at each of `tokens` behind `prefix`; both arrays are `[tokens, K]`. *Mutates*."""
        place = _hash_tokens(_START, prefix)
        for row, token in enumerate(tokens):
            self._rows.setdefault(place, (ids, logprobs, row))
            place = hash((place, token))

    def find(self, tokens: Tokens, start: int) -> list[list[LikelyToken]]:
        """Returns what was likely at each token from `start` on, best first; nothing where no engine chose one."""
        place, alternatives = _hash_tokens(_START, tokens[:start]), list[list[LikelyToken]]()
        for token in tokens[start:]:
            alternatives.append(self._read_row(place))
            place = hash((place, token))
        return alternatives

    def _read_row(self, place: int) -> list[LikelyToken]:
        if place not in self._rows:
            return []
        ids, logprobs, row = self._rows[place]
        pairs = zip(ids[row, : self.num].tolist(), logprobs[row, : self.num].tolist(), strict=True)
        return [LikelyToken(number, logprob) for number, logprob in pairs if number >= 0]


class TopTokenRecorder:
    """Generates with `engine`, whose settings have `names_tokens`, and records `num` likely tokens at every place.

    Callers get what they asked for: measures that only the record needs are taken out of the generations.
    """

    def __init__(self, engine: TokenGenerator, num: int) -> None:
        self._engine, self.top_tokens = engine, TopTokens(num)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `core.TokenGenerator`."""
        num = self.top_tokens.num
        requests_with_ids = [replace(each, num_top=max(each.num_top, num), names_top=True) for each in requests]
        generations = await self._engine.generate(requests_with_ids)
        return [self._record(*pair) for pair in zip(requests, generations, strict=True)]

    def _record(self, request: GenerationRequest, generation: Generation) -> Generation:
        top, ids = generation.top_logprobs, generation.top_ids
        if top is not None and ids is not None:
            self.top_tokens.add(request.prefix, generation.tokens, ids, top)
        logprobs = None if top is None or not request.num_top else top[:, : request.num_top]
        entropies = generation.entropies if request.num_top else None
        return replace(generation, top_logprobs=logprobs, entropies=entropies, top_ids=None)


def _hash_tokens(place: int, tokens: Tokens) -> int:
    for token in tokens:
        place = hash((place, token))
    return place
