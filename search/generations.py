"""Generations that are written in parts: requests for the next part, and the parts put together or cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from decoding.core import Generation, GenerationRequest, SamplingParams, StepOrigin
from search.steps import Decode
from search.uncertainty import join_uncertainty

NO_GENERATION = Generation(tokens=(), logprobs=(), finish="length")
"""A generation to which nothing has been written yet."""


def join_generations(first: Generation, then: Generation) -> Generation:
    """Returns two generations, of which the second continues the first, as one."""
    if not first.tokens and not first.usage.calls:
        return then
    shifted = [StepOrigin(len(first.tokens) + o.end, o.model, o.score) for o in then.origins]
    has_logprobs = len(first.logprobs) == len(first.tokens) and len(then.logprobs) == len(then.tokens)
    top_logprobs, entropies = join_uncertainty([first, then])
    return replace(
        then,
        tokens=first.tokens + then.tokens,
        top_logprobs=top_logprobs,
        entropies=entropies,
        top_ids=None,  # recorded where the engine answers, see reason.engines.top_tokens
        logprobs=first.logprobs + then.logprobs if has_logprobs else (),
        usage=first.usage + then.usage,
        origins=(*first.origins, *shifted),
    )


def cut_generation(generation: Generation, length: int) -> Generation:
    """Returns the first `length` tokens of a generation, with the usage of all of it."""
    ends = [origin.end for origin in generation.origins]
    kept_origins = [o for o, start in zip(generation.origins, [0, *ends], strict=False) if start < length]
    return replace(
        generation,
        tokens=generation.tokens[:length],
        logprobs=generation.logprobs[:length],
        hidden=generation.hidden if length == len(generation.tokens) else None,
        origins=tuple(replace(origin, end=min(origin.end, length)) for origin in kept_origins),
        top_logprobs=None if generation.top_logprobs is None else generation.top_logprobs[:length],
        entropies=None if generation.entropies is None else generation.entropies[:length],
        top_ids=None if generation.top_ids is None else generation.top_ids[:length],
    )


def continue_after(request: GenerationRequest, before: Generation) -> GenerationRequest:
    """Returns the request for what follows `before`. It has the same seed: noise belongs to a position, so the text is
    that of one generation. At least one token, so that the forced end of a thought has an answer."""
    if not before.tokens:
        return request
    room = max(1, request.params.max_tokens - len(before.tokens))
    params = limit_tokens(request.params, room)
    return replace(request, prefix=request.prefix + before.tokens, params=params)


def with_max_tokens(request: GenerationRequest, max_tokens: int) -> GenerationRequest:
    """Returns the same request with another `max_tokens`."""
    if max_tokens == request.params.max_tokens:
        return request
    return request.with_params(limit_tokens(request.params, max_tokens))


# the same for all branches of a search: making parameters checks every field
@lru_cache(maxsize=4096)
def limit_tokens(params: SamplingParams, max_tokens: int) -> SamplingParams:
    """Returns the same parameters with another `max_tokens`."""
    return replace(params, max_tokens=max_tokens)


@lru_cache(maxsize=4096)
def add_stops(params: SamplingParams, stops: tuple[str, ...]) -> SamplingParams:
    """Returns the same parameters with more stop strings."""
    return replace(params, stop=(*params.stop, *stops))


def cut_at_stop(generation: Generation, border: int, stops: Sequence[str], decode: Decode) -> Generation:
    """Returns a generation that ends with the token which completes a stop string begun before `border` tokens.

    An engine that writes in two parts finds only the stops within one of them. Unchanged where there is none.
    """
    width = max((len(stop.encode()) for stop in stops), default=0)  # a token has at least one byte
    if border < 1 or not width:
        return generation
    first = max(0, border - width)
    before = decode(generation.tokens[first:border])
    for end in range(border + 1, min(border + width, len(generation.tokens)) + 1):
        text = decode(generation.tokens[first:end])
        if any(stop in text and stop not in before for stop in stops):
            return replace(cut_generation(generation, end), finish="stop")
    return generation
