"""An engine whose generations may begin with given tokens, and which keeps what it measured at every place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from decoding.core import Generation, GenerationRequest, TokenGenerator, Tokens, Usage
from search.generations import cut_generation, join_generations, with_max_tokens


@dataclass
class GivenTokens:
    """Generates with `engine` what comes behind given tokens, and returns both as one generation.

    Requests are told apart by their seeds, which are different for each continuation of a search.

    given   by seed, the prefix behind which tokens are given, and the tokens as a generation
    parts   by seed, what the engine wrote: the prefix and the generation, in order
    """

    engine: TokenGenerator
    given: dict[int, tuple[Tokens, Generation]] = field(default_factory=dict)
    parts: dict[int, list[tuple[Tokens, Generation]]] = field(default_factory=dict)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `core.TokenGenerator`. The usage is that of what the engine wrote."""
        return list(await asyncio.gather(*(self._generate_one(request) for request in requests)))

    async def _generate_one(self, request: GenerationRequest) -> Generation:
        start, given = self.given.get(request.seed, (request.prefix, None))
        # The request may begin within the given tokens, where the generation is written in parts.
        at = len(request.prefix) - len(start)
        if given is None or request.prefix != start + given.tokens[:at] or at >= len(given.tokens):
            return await self._write(request)
        rest = _drop_tokens(given, at)
        room = request.params.max_tokens - len(rest.tokens)
        if room < 0:
            rest = replace(cut_generation(rest, request.params.max_tokens), finish="length")
        if room <= 0 or rest.finish != "length":
            return replace(rest, usage=Usage(calls=1, tokens=len(rest.tokens)))
        behind = with_max_tokens(replace(request, prefix=request.prefix + rest.tokens), room)
        return join_generations(rest, await self._write(behind))

    async def _write(self, request: GenerationRequest) -> Generation:
        (generation,) = await self.engine.generate([replace(request, names_top=True)])
        self.parts.setdefault(request.seed, []).append((request.prefix, generation))
        return generation


def _drop_tokens(generation: Generation, count: int) -> Generation:
    """Returns a generation without its first `count` tokens."""
    return replace(
        generation,
        tokens=generation.tokens[count:],
        logprobs=generation.logprobs[count:],
        top_logprobs=None if generation.top_logprobs is None else generation.top_logprobs[count:],
        top_ids=None if generation.top_ids is None else generation.top_ids[count:],
        entropies=None if generation.entropies is None else generation.entropies[count:],
    )
