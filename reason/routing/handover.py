"""Lets two models write in turns: a router says after each turn what stays of it, and which model writes the next one.

Turns may end anywhere, so that a model can take over inside a step (`routing.engine` chooses between whole steps).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from decoding.core import Generation, GenerationRequest, StepOrigin, TokenGenerator, Tokens, Usage
from reason.engines.event_loop import gather_or_cancel
from reason.routing.base import StatelessRouter, StepAuthor
from search.uncertainty import join_uncertainty, make_certain


@dataclass(frozen=True)
class Turn:
    """What a model writes next: at most `max_tokens`, up to the first of `stops`; `inject` is put in before it."""

    author: StepAuthor
    max_tokens: int
    stops: tuple[str, ...] = ()
    inject: str = ""


@dataclass(frozen=True)
class Review:
    """How many tokens of a turn stay (the others are discarded), the number behind that, and the next turn."""

    num_kept: int
    next_turn: Turn
    score: float | None = None


class Handover(Protocol):
    """Decides about the turns of one request."""

    def begin(self) -> Turn:
        """Returns the first turn."""
        ...

    def review_turn(self, generation: Generation, text: str) -> Review:
        """Reviews what the last turn wrote, without the text that was put in before it. *Mutates* self."""
        ...


class HandoverRouter(StatelessRouter):
    """Base of routers that let models write in turns; a new one is one file and one yaml, as other routers."""

    @abstractmethod
    def start(self, path_text: str) -> Handover:
        """Returns the decisions about one request, which continues a solution with this text."""


@dataclass
class _Writing:
    """Everything written for one request so far."""

    parts: list[Generation] = field(default_factory=list)
    origins: list[StepOrigin] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    @property
    def tokens(self) -> Tokens:
        return tuple(token for part in self.parts for token in part.tokens)

    def add(self, part: Generation, author: StepAuthor, score: float | None) -> None:
        """Adds a part. *Mutates*."""
        if part.tokens:
            self.parts.append(part)
            end = (self.origins[-1].end if self.origins else 0) + len(part.tokens)
            self.origins.append(StepOrigin(end, author, score))


@dataclass(frozen=True)
class HandoverEngine:
    """Writes the solutions of one problem with two models in turns; implements `core.TokenGenerator`.

    Both models get the request's own seed, whose noise belongs to positions: a model that writes all turns writes its
    own solution.

    models  the two engines by author
    root    the problem's prompt
    decode, encode   token ids to text, and the ids of a text that is put in
    """

    models: dict[StepAuthor, TokenGenerator]
    router: HandoverRouter
    root: Tokens
    decode: Callable[[Tokens], str]
    encode: Callable[[str], Tokens]

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `core.TokenGenerator`. `origins` of a generation hold each turn's author and score."""
        return await gather_or_cancel([self._generate_one(request) for request in requests])

    async def _generate_one(self, request: GenerationRequest) -> Generation:
        writing = _Writing()
        handover = self.router.start(self.decode(request.prefix[len(self.root) :]))
        turn = handover.begin()
        while True:
            if turn.inject and self._room(request, writing) > len(injected := self.encode(turn.inject)):
                writing.add(make_certain(injected), turn.author, None)
            part = await self._write_turn(request, writing, turn)
            review = handover.review_turn(part, self.decode(part.tokens))
            rest = _cut_generation(part, review.num_kept)
            writing.add(rest, turn.author, review.score)
            writing.usage += _count_turn(part, turn.author, len(part.tokens) - len(rest.tokens))
            is_cut = len(rest.tokens) < len(part.tokens)
            has_ended = not part.tokens or (not is_cut and self._has_ended(part, request))
            if has_ended or not self._room(request, writing):
                return self._join(writing, part if has_ended else replace(part, finish="length"))
            turn = review.next_turn

    async def _write_turn(self, request: GenerationRequest, writing: _Writing, turn: Turn) -> Generation:
        params = replace(
            request.params,
            max_tokens=min(turn.max_tokens, self._room(request, writing)),
            stop=(*request.params.stop, *(stop for stop in turn.stops if stop not in request.params.stop)),
        )
        num_top = max(request.num_top, self.router.num_top)
        turn_request = replace(request, prefix=request.prefix + writing.tokens, params=params, num_top=num_top)
        (part,) = await self.models[turn.author].generate([turn_request])
        return part

    def _has_ended(self, part: Generation, request: GenerationRequest) -> bool:
        """Whether the request's own stops, the end of the text or the deadline ended the turn."""
        if part.finish != "stop":
            return part.finish != "length"
        text = self.decode(part.tokens)
        return part.tokens[-1] in request.params.stop_token_ids or any(stop in text for stop in request.params.stop)

    def _room(self, request: GenerationRequest, writing: _Writing) -> int:
        return request.params.max_tokens - (writing.origins[-1].end if writing.origins else 0)

    def _join(self, writing: _Writing, last: Generation) -> Generation:
        tokens = writing.tokens
        logprobs = tuple(logprob for part in writing.parts for logprob in part.logprobs)
        top_logprobs, entropies = join_uncertainty(writing.parts)
        return Generation(
            tokens=tokens,
            logprobs=logprobs if len(logprobs) == len(tokens) else (),  # empty where one of the engines returns none
            finish=last.finish,
            usage=replace(writing.usage, tokens=len(tokens)),
            hidden=last.hidden,
            origins=tuple(writing.origins),
            top_logprobs=top_logprobs,
            entropies=entropies,
        )


def _cut_generation(generation: Generation, length: int) -> Generation:
    """Returns the first `length` tokens of a generation."""
    top, entropies = generation.top_logprobs, generation.entropies
    return replace(
        generation,
        tokens=generation.tokens[:length],
        logprobs=generation.logprobs[:length],
        top_logprobs=None if top is None else top[:length],
        entropies=None if entropies is None else entropies[:length],
    )


def _count_turn(part: Generation, author: StepAuthor, num_discarded: int) -> Usage:
    """Returns the usage of a turn; the small model's forward passes are counted apart from the target model's."""
    usage = replace(part.usage, discarded_tokens=num_discarded)
    if author == "target":
        return usage
    return replace(usage, forwards=0, small_forwards=usage.forwards, small_tokens=len(part.tokens))
