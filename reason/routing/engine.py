"""An engine made of two: a small model writes each step, a router reads it, a large one writes it anew if need be.

Arbitrage (arXiv 2512.05033). Lossy: a step that stays is the small model's. Where it stays, the large model is not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from decoding.core import Authorship, Engine, Generation, GenerationRequest, Spent, Tokens
from reason.routing.base import BoundRouter, Crossroads, Router, Verdict
from reason.routing.token_bridge import Translation
from search.seeds import derive_seed
from search.steps import split_steps
from search.strategy import StepScorer
from search.tree import Step


@dataclass
class _Written:
    """What a request has become so far."""

    steps: list[Step] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    authors: list[Authorship] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)


class Arbitrage:
    """Two engines and a router. `bind` gives the engine of one problem.

    draft, target   any engines
    decode          token ids of the target to text
    delimiter       the text that ends a step
    translation     between their vocabularies, where the draft has another one
    """

    def __init__(
        self,
        draft: Engine,
        target: Engine,
        router: Router,
        *,
        decode: Callable[[Tokens], str],
        delimiter: str,
        translation: Translation | None = None,
    ) -> None:
        self.draft, self.target, self.router = draft, target, router
        self.decode, self.delimiter, self.translation = decode, delimiter, translation

    @property
    def stats(self) -> Any:
        """The large model's."""
        return getattr(self.target, "stats", None)

    def bind(self, question: str, root: Tokens, scorer: StepScorer | None) -> BoundArbitrage:
        """The engine for the problem whose prompt is `root`, read with its scorer."""
        draft = self.draft if self.translation is None else self.translation.bind(self.draft, question, root)
        return BoundArbitrage(self, draft, self.router.bind(question, root), root, scorer)

    def check(self) -> None:
        """Asserts what can be asserted of either engine when it is idle."""
        for engine in (self.draft, self.target):
            check = getattr(engine, "check", None)
            if check is not None:
                check()

    def close(self) -> None:
        """Closes both engines and the router."""
        self.router.close()
        for engine in (self.draft, self.target):
            close = getattr(engine, "close", None)
            if close is not None:
                close()


class BoundArbitrage:
    """Implements `core.Engine` for one problem. Requests are independent of each other: a branch that is drafting, one
    that is read and one that the large model writes are under way at once.

    Seeds are the request's at every step and for both models, so that what one model alone writes is what its own
    engine would have written.
    """

    def __init__(
        self, parts: Arbitrage, draft: Engine, router: BoundRouter, root: Tokens, scorer: StepScorer | None
    ) -> None:
        self._parts, self._small, self._router, self._root, self._scorer = parts, draft, router, root, scorer

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `core.Engine`. `authors` of a generation say who wrote what, and by what number that was decided."""
        return list(await asyncio.gather(*(self._write(request) for request in requests)))

    async def _write(self, request: GenerationRequest) -> Generation:
        written, one_step = _Written(), self._parts.delimiter in request.params.stop
        parts = self._parts
        before = split_steps(request.prefix[len(self._root) :], (), parts.decode, parts.delimiter)
        while True:
            step = await self._step(request, written, (*before, *written.steps))
            ended = step.finish != "stop" or one_step or not self._goes_on(written.steps[-1], request)
            if ended or len(written.tokens) >= request.params.max_tokens:
                finish = step.finish if ended else "length"
                break
        return Generation(
            tokens=tuple(written.tokens),
            # none where one of the two engines is told none
            logprobs=tuple(written.logprobs) if len(written.logprobs) == len(written.tokens) else (),
            finish=finish,
            spent=replace(written.spent, tokens=len(written.tokens)),
            hidden=step.hidden,
            authors=tuple(written.authors),
        )

    def _goes_on(self, step: Step, request: GenerationRequest) -> bool:
        """Whether it was only the delimiter that ended this step."""
        if not step.tokens or step.tokens[-1] in request.params.stop_token_ids:
            return False
        return self._parts.delimiter in step.text and not any(stop in step.text for stop in request.params.stop)

    async def _step(self, request: GenerationRequest, written: _Written, before: tuple[Step, ...]) -> Generation:
        """One more step, added to what was written."""
        parts, params = self._parts, request.params
        one = replace(
            request,
            prefix=request.prefix + tuple(written.tokens),
            params=replace(
                params,
                stop=(*(stop for stop in params.stop if stop != parts.delimiter), parts.delimiter),
                max_tokens=params.max_tokens - len(written.tokens),
            ),
        )
        needs = self._router.needs
        draft = target = None
        if needs == "both":
            draft, (target,) = await asyncio.gather(self._draft(one), parts.target.generate([one]))
        elif needs == "draft":
            draft = await self._draft(one)
        verdict = await self._read(one, before, draft, target)
        if verdict.author == "target" and target is None:
            (target,) = await parts.target.generate([one])
        kept, other = (target, draft) if verdict.author == "target" else (draft, target)
        assert kept is not None
        self._add(written, kept, other, draft, verdict)
        return kept

    async def _draft(self, one: GenerationRequest) -> Generation:
        (draft,) = await self._small.generate([one])
        return replace(draft, spent=replace(draft.spent, forwards=0, draft_forwards=draft.spent.forwards))

    async def _read(
        self, one: GenerationRequest, before: tuple[Step, ...], draft: Generation | None, target: Generation | None
    ) -> Verdict:
        if draft is not None and not draft.tokens:
            return Verdict("target")  # nothing to read: the small model is out of time or words
        at = Crossroads(
            before,
            None if draft is None else self._whole(draft),
            None if target is None else self._whole(target),
            derive_seed(one.seed, "route", len(one.prefix)),
            self._scorer,
            one.group,
            one.prefix,
        )
        return await self._router.read(at)

    def _whole(self, generation: Generation) -> Step:
        """A generation as the one step it is meant to be."""
        return Step(generation.tokens, self._parts.decode(generation.tokens), generation.logprobs)

    def _add(
        self,
        written: _Written,
        kept: Generation,
        other: Generation | None,
        draft: Generation | None,
        verdict: Verdict,
    ) -> None:
        written.steps.append(self._whole(kept))
        written.tokens += kept.tokens
        written.logprobs += kept.logprobs
        written.authors.append(Authorship(len(written.tokens), verdict.author, verdict.score))
        spent = kept.spent + verdict.spent
        if other is not None:
            spent += other.spent
        written.spent += replace(
            spent,
            draft_tokens=0 if draft is None else len(draft.tokens),
            discarded_tokens=0 if other is None else len(other.tokens),
        )
