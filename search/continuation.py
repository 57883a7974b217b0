"""Generates and scores one continuation of a path: a whole solution, or one step as the step rule says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from decoding.core import Generation, GenerationRequest, StepOrigin
from search.scoring import PathScores, ScoreQueue
from search.steps import attribute_steps, split_steps
from search.strategy import Resources, StepEvent
from search.thought import ThoughtBudget
from search.tree import Step


@dataclass(frozen=True)
class Continuation:
    """A generation, its steps, and the scores of the path that ends with them.

    is_open  whether the last step is complete, so that its path can be continued
    """

    generation: Generation
    steps: list[Step]
    is_open: bool
    path_scores: PathScores | None


@dataclass(frozen=True)
class OpenThought:
    """The unfinished thought in which a continuation begins.

    remaining  tokens for which it may go on; 0 and less: it is ended at once
    path_text  text of the solution so far
    """

    budget: ThoughtBudget
    remaining: int
    path_text: str


class ContinuationWriter:
    """Generates continuations with the engine of `resources`, and scores each as soon as it is generated."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._scoring = ScoreQueue(resources.scorer, resources.scorer_timeout) if resources.scorer else None

    async def write_solution(
        self, request: GenerationRequest, path: Sequence[Step], thought: OpenThought | None = None
    ) -> Continuation:
        """Continues `path` to the end of the solution; `thought` is the one it is inside of."""
        engine, limit = self._resources.engine, request.params.max_tokens
        generation = Generation(tokens=(), logprobs=(), finish="length")
        if thought is None or thought.remaining > 0:
            part = request if thought is None else _with_max_tokens(request, min(thought.remaining, limit))
            (generation,) = await engine.generate([part])
        if thought is not None and generation.finish == "length" and len(generation.tokens) < limit:
            if thought.budget.is_open(thought.path_text + self._resources.decode(generation.tokens)):
                generation = thought.budget.put_in_end(generation)
            (more,) = await engine.generate([_continue_after(request, generation)])
            generation = join_generations(generation, more)
        rule, decode = self._resources.step_rule, self._resources.decode
        steps = split_steps(generation.tokens, generation.logprobs, decode, rule)
        return await self._score(generation, steps, path, is_open=False)

    async def write_step(
        self, request: GenerationRequest, path: Sequence[Step], thought: OpenThought | None = None, *, may_go_on: bool
    ) -> Continuation:
        """Continues `path` by one step of at most `max_tokens`.

        The engine may stop at a text that ends no step, and is sent on. Tokens behind the end of the step are thrown
        away. A step that `max_tokens` cuts is open where `may_go_on`: the next step goes on. So is one that ends where
        its thought has used up its budget; the next step then begins with the forced end.
        """
        rule, decode = self._resources.step_rule, self._resources.decode
        generation = Generation(tokens=(), logprobs=(), finish="length")
        if thought is not None and thought.remaining < 1:
            generation = thought.budget.put_in_end(generation)
        elif thought is not None and thought.remaining < request.params.max_tokens:
            request, may_go_on = _with_max_tokens(request, thought.remaining), True
        start, params = len(generation.tokens), request.params
        stopping = replace(request, params=replace(params, stop=(*params.stop, *rule.stop_strings)))
        while True:
            (more,) = await self._resources.engine.generate([_continue_after(stopping, generation)])
            generation = join_generations(generation, more)
            end = rule.find_end(generation.tokens, start, decode)
            step = Step(generation.tokens[:end], decode(generation.tokens[:end]), generation.logprobs[:end])
            has_stop = bool(step.tokens) and _has_stop(step, request)
            was_early = end is None and more.tokens and more.finish == "stop" and not has_stop
            if not was_early or len(generation.tokens) >= params.max_tokens:
                break
        is_complete = end is not None and (end < len(generation.tokens) or generation.finish in ("stop", "length"))
        is_open = (is_complete or (may_go_on and generation.finish == "length")) and not has_stop
        return await self._score(generation, [step] if step.tokens else [], path, is_open=is_open)

    async def _score(
        self, generation: Generation, steps: list[Step], path: Sequence[Step], *, is_open: bool
    ) -> Continuation:
        steps = attribute_steps(steps, generation.origins)
        path_scores = await self._scoring.score([*path, *steps]) if self._scoring and steps else None
        if self._resources.on_step and steps:
            last_score = path_scores.scores[-1] if path_scores and path_scores.scores else None
            self._resources.on_step(StepEvent(steps, last_score))
        return Continuation(generation, steps, is_open, path_scores)


def join_generations(first: Generation, then: Generation) -> Generation:
    """Returns two generations, of which the second continues the first, as one."""
    shifted = [StepOrigin(len(first.tokens) + o.end, o.model, o.score) for o in then.origins]
    has_logprobs = len(first.logprobs) == len(first.tokens) and len(then.logprobs) == len(then.tokens)
    return replace(
        then,
        tokens=first.tokens + then.tokens,
        logprobs=first.logprobs + then.logprobs if has_logprobs else (),
        usage=first.usage + then.usage,
        origins=(*first.origins, *shifted),
    )


def _continue_after(request: GenerationRequest, before: Generation) -> GenerationRequest:
    """Returns the request for what follows `before`. It has the same seed: noise belongs to a position, so the text is
    that of one generation. At least one token, so that the forced end of a thought has an answer."""
    room = max(1, request.params.max_tokens - len(before.tokens))
    return _with_max_tokens(replace(request, prefix=request.prefix + before.tokens), room)


def _with_max_tokens(request: GenerationRequest, max_tokens: int) -> GenerationRequest:
    return replace(request, params=replace(request.params, max_tokens=max_tokens))


def _has_stop(step: Step, request: GenerationRequest) -> bool:
    """Whether one of the request's own stops ended a step."""
    stops: Sequence[str] = request.params.stop
    return step.tokens[-1] in request.params.stop_token_ids or any(stop in step.text for stop in stops)
