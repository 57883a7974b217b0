"""Combines two engines step by step: a small model proposes each step and a router decides whether the target model
writes it instead.

Arbitrage (arXiv 2512.05033). Lossy: an accepted proposal is the small model's text. The target
model does not run for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from decoding.core import Engine, Generation, GenerationRequest, StepOrigin, TokenGenerator, Tokens, Usage
from reason.engines.event_loop import gather_or_cancel
from reason.routing.base import BoundRouter, Router, RoutingContext, RoutingDecision, StepAuthor
from reason.routing.handover import HandoverEngine, HandoverRouter
from reason.routing.step_authors import StepAuthors
from reason.routing.token_bridge import TokenBridge
from search.seeds import derive_seed
from search.steps import DelimiterSteps, split_steps
from search.strategy import StepScorer
from search.tree import Step
from search.uncertainty import join_uncertainty


class RoutedEngine:
    """Binds two engines and a router to problems; implements `solver.EngineFactory`.

    small      engine of the small model
    target     engine of the target model
    decode     token ids of the target model to text
    delimiter  the text that ends a step
    bridge     between the two vocabularies where they differ, else None
    encode     the target model's ids of a text that a router puts in; only some routers need it
    """

    def __init__(
        self,
        small: Engine,
        target: Engine,
        router: Router,
        *,
        decode: Callable[[Tokens], str],
        delimiter: str,
        bridge: TokenBridge | None = None,
        encode: Callable[[str], Tokens] | None = None,
    ) -> None:
        self.small, self.target, self.router = small, target, router
        self.decode, self.delimiter, self.bridge = decode, delimiter, bridge
        self.encode = encode

    def bind(self, question: str, root: Tokens, scorer: StepScorer | None) -> TokenGenerator:
        """See `solver.EngineFactory`."""
        if isinstance(self.router, HandoverRouter):
            assert self.encode is not None, "a router of turns puts in texts"
            models: dict[StepAuthor, TokenGenerator] = {"draft": self.small, "target": self.target}
            return HandoverEngine(models, self.router, root, self.decode, self.encode)
        small: TokenGenerator = self.small
        if self.bridge is not None:
            small = self.bridge.bind(self.small, question, root)
        return BoundRoutedEngine(self, small, self.router.bind(question, root), root, scorer)

    def assert_invariants(self) -> None:
        """Asserts that neither engine, once idle, holds anything for any request."""
        self.small.assert_invariants()
        self.target.assert_invariants()

    def close(self) -> None:
        """Closes the router and both engines."""
        self.router.close()
        self.small.close()
        self.target.close()


@dataclass
class _Progress:
    """Everything generated for one request so far."""

    steps: list[Step] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    origins: list[StepOrigin] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    accepted: list[Generation] = field(default_factory=list)


class BoundRoutedEngine:
    """Generates the steps of one problem with two models; implements `core.TokenGenerator`.

    Requests are independent: while one branch waits for the small model, others are routed or wait for the target
    model. Both models get the request's own seed at every step, so that a router that always chooses the same model
    reproduces that model's own output.
    """

    def __init__(
        self, parts: RoutedEngine, small: TokenGenerator, router: BoundRouter, root: Tokens, scorer: StepScorer | None
    ) -> None:
        self._parts, self._small, self._router, self._root, self._scorer = parts, small, router, root, scorer
        self._authors = StepAuthors()

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `core.TokenGenerator`. `origins` of a generation hold each step's author and routing score."""
        return await gather_or_cancel([self._generate_one(request) for request in requests])

    async def _generate_one(self, request: GenerationRequest) -> Generation:
        # A request that stops at the delimiter wants one step; any other wants steps up to the end of the solution.
        parts, progress, one_step = self._parts, _Progress(), self._parts.delimiter in request.params.stop
        rule = DelimiterSteps(delimiter=parts.delimiter)
        previous_steps = self._authors.name_authors(
            split_steps(request.prefix[len(self._root) :], (), parts.decode, rule)
        )
        while True:
            step = await self._generate_step(request, progress, (*previous_steps, *progress.steps))
            has_ended = step.finish != "stop" or one_step or not self._ends_at_delimiter(progress.steps[-1], request)
            if has_ended or len(progress.tokens) >= request.params.max_tokens:
                finish = step.finish if has_ended else "length"
                break
        top_logprobs, entropies = join_uncertainty(progress.accepted)
        return Generation(
            tokens=tuple(progress.tokens),
            # empty where one of the two engines returns none
            logprobs=tuple(progress.logprobs) if len(progress.logprobs) == len(progress.tokens) else (),
            finish=finish,
            usage=replace(progress.usage, tokens=len(progress.tokens)),
            hidden=step.hidden,
            origins=tuple(progress.origins),
            top_logprobs=top_logprobs,
            entropies=entropies,
        )

    def _ends_at_delimiter(self, step: Step, request: GenerationRequest) -> bool:
        """Whether the step ended at the delimiter, and at none of the request's own stops."""
        if not step.tokens or step.tokens[-1] in request.params.stop_token_ids:
            return False
        return self._parts.delimiter in step.text and not any(stop in step.text for stop in request.params.stop)

    async def _generate_step(
        self, request: GenerationRequest, progress: _Progress, previous_steps: tuple[Step, ...]
    ) -> Generation:
        """Generates one more step and adds it to `progress`."""
        parts, params = self._parts, request.params
        step_request = replace(
            request,
            prefix=request.prefix + tuple(progress.tokens),
            params=replace(
                params,
                stop=(*(stop for stop in params.stop if stop != parts.delimiter), parts.delimiter),
                max_tokens=params.max_tokens - len(progress.tokens),
            ),
        )
        steps_read = self._router.steps_read
        small = target = None
        if steps_read == "both":
            small, target = await gather_or_cancel([self._propose_step(step_request), self._write_step(step_request)])
        elif steps_read == "small":
            small = await self._propose_step(step_request)
        decision = await self._route_step(step_request, previous_steps, small, target)
        if decision.author == "target" and target is None:
            target = await self._write_step(step_request)
        accepted, discarded = (target, small) if decision.author == "target" else (small, target)
        assert accepted is not None
        self._record_step(progress, accepted, discarded, small, decision)
        self._authors.record(previous_steps, progress.steps[-1])
        return accepted

    async def _write_step(self, request: GenerationRequest) -> Generation:
        """Generates the step with the target model."""
        (target,) = await self._parts.target.generate([request])
        return target

    async def _propose_step(self, request: GenerationRequest) -> Generation:
        """Generates the step with the small model; its forward passes are counted apart from the target model's."""
        (small,) = await self._small.generate([request])
        return replace(small, usage=replace(small.usage, forwards=0, small_forwards=small.usage.forwards))

    async def _route_step(
        self,
        request: GenerationRequest,
        previous_steps: tuple[Step, ...],
        small: Generation | None,
        target: Generation | None,
    ) -> RoutingDecision:
        if small is not None and not small.tokens:
            return RoutingDecision("target")  # an empty proposal: the small model is out of time or window
        context = RoutingContext(
            previous_steps=previous_steps,
            small_step=None if small is None else self._as_step(small, "draft"),
            target_step=None if target is None else self._as_step(target, "target"),
            seed=derive_seed(request.seed, "route", len(request.prefix)),
            scorer=self._scorer,
            group=request.group,
            prefix=request.prefix,
        )
        return await self._router.choose_author(context)

    def _as_step(self, generation: Generation, author: StepAuthor) -> Step:
        """The generation as one step; it ended at the delimiter, at a stop or at the end of the solution."""
        return Step(generation.tokens, self._parts.decode(generation.tokens), generation.logprobs, model=author)

    def _record_step(
        self,
        progress: _Progress,
        accepted: Generation,
        discarded: Generation | None,
        small: Generation | None,
        decision: RoutingDecision,
    ) -> None:
        """Adds the accepted step to `progress`, and the cost of both proposals and of the decision."""
        progress.steps.append(self._as_step(accepted, decision.author))
        progress.accepted.append(accepted)
        progress.tokens += accepted.tokens
        progress.logprobs += accepted.logprobs
        progress.origins.append(StepOrigin(len(progress.tokens), decision.author, decision.score))
        usage = accepted.usage + decision.usage
        if discarded is not None:
            usage += discarded.usage
        progress.usage += replace(
            usage,
            small_tokens=0 if small is None else len(small.tokens),
            discarded_tokens=0 if discarded is None else len(discarded.tokens),
        )
