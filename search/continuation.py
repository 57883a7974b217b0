"""Generates and scores one continuation of a path: a whole solution, or one step as the step rule says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from decoding.core import NO_USAGE, Generation, GenerationRequest, Usage
from search.generations import (
    NO_GENERATION,
    add_stops,
    continue_after,
    cut_at_stop,
    join_generations,
    with_max_tokens,
)
from search.scoring import PathScores, ScoreQueue
from search.steps import attribute_steps, make_step, split_generation
from search.strategy import Resources, StepEvent
from search.thinking_time import ThinkingTime
from search.thought import NO_HISTORY, OpenThought, ThoughtHistory
from search.thought_progress import ThoughtProgress
from search.tree import Step


@dataclass(slots=True)  # a frozen one takes four times as long to make, and every branch and step makes one
class Continuation:
    """A generation, its steps, and the scores of the path that ends with them, for which it does not wait.

    is_open      whether the last step is complete, so that its path can be continued
    history      what happened to the thought of the path
    is_late      whether its thought was ended, or not begun, because the time limit of the search is near
    probe_usage  usage of its probes, which `generation` does not have
    """

    generation: Generation
    steps: list[Step]
    is_open: bool
    scoring: asyncio.Future[PathScores] | None
    history: ThoughtHistory = NO_HISTORY
    probe_usage: Usage = NO_USAGE
    is_late: bool = False


class ContinuationWriter:
    """Generates continuations with the engine of `resources`, and scores each as soon as it is generated.

    It measures the pace of the search for `time`, where there is a time limit.
    """

    def __init__(self, resources: Resources, time: ThinkingTime | None = None) -> None:
        self._resources, self._time = resources, time
        # a step is decoded to find its end, and once more for its text
        self._decode = lru_cache(maxsize=4)(resources.decode)
        self._scoring = ScoreQueue(resources.scorer, resources.scorer_timeout) if resources.scorer else None
        self._stop_strings = resources.step_rule.stop_strings
        self._has_listener = time is not None or resources.on_step is not None  # for which a branch waits for its score

    async def write_solution(
        self, request: GenerationRequest, path: Sequence[Step], thought: OpenThought | None = None
    ) -> Continuation:
        """Continues `path` to the end of the solution; `thought` is the one it is inside of."""
        limit, generation = request.params.max_tokens, NO_GENERATION
        floor = self._resources.floor
        progress = self._watch(thought, request)
        while True:
            if progress is not None and progress.must_interrupt(generation):
                generation = progress.interrupt(generation)
            part, border = continue_after(request, generation), len(generation.tokens)
            is_last = floor is None and (progress is None or not progress.is_open)
            part = part if progress is None else progress.limit_request(part, generation)
            started = self._resources.clock()
            part = part if floor is None else floor.limit_request(part)
            (more,) = await self._resources.engine.generate([part])
            self._add_pace(more, started)
            generation = join_generations(generation, more)
            if progress is not None:
                generation = await progress.review(generation, border)
                request = with_max_tokens(request, limit - progress.num_lost)
            elif floor is not None:
                generation = cut_at_stop(generation, border, request.params.stop, self._resources.decode)
            if floor is not None and (weak := floor.cut_weak(generation, border)) is not None:
                unused = Usage(unused_tokens=len(generation.tokens) - len(weak.tokens))
                generation = replace(weak, finish="dropped", usage=weak.usage + unused)
                break
            is_full = len(generation.tokens) >= request.params.max_tokens
            goes_on = bool(more.tokens) or (progress is not None and progress.must_interrupt(generation))
            if is_last or is_full or generation.finish != "length" or not goes_on:
                break
        rule, decode = self._resources.step_rule, self._resources.decode
        steps = split_generation(generation, decode, rule)
        continuation = self._complete(generation, steps, path, progress, is_open=False)
        if self._has_listener:
            await self._report(continuation)
        return continuation

    async def write_step(
        self, request: GenerationRequest, path: Sequence[Step], thought: OpenThought | None = None, *, may_go_on: bool
    ) -> Continuation:
        """Continues `path` by one step of at most `max_tokens`.

        The engine may stop at a text that ends no step, or after a stretch, and is sent on. Tokens behind the end of
        the step are thrown away. A step that `max_tokens` cuts is open where `may_go_on`: the next step goes on. So is
        one that ends where its thought has used up its budget, or knows its answer; the next step then begins with the
        forced end, or with a hint.
        """
        rule, decode = self._resources.step_rule, self._decode
        generation, progress = NO_GENERATION, self._watch(thought, request)
        if progress is not None and progress.must_interrupt(generation):
            generation = progress.interrupt(generation)
        is_thinking = progress is not None and progress.is_open
        if is_thinking and thought is not None and thought.remaining < request.params.max_tokens:
            request, may_go_on = with_max_tokens(request, thought.remaining), True
        start, params = len(generation.tokens), request.params
        stopping = request.with_params(add_stops(params, self._stop_strings)) if self._stop_strings else request
        while True:
            part = continue_after(stopping, generation)
            is_stretch = rule.stretch_tokens is not None and rule.stretch_tokens < part.params.max_tokens
            if rule.stretch_tokens is not None and is_stretch:
                part = with_max_tokens(part, rule.stretch_tokens)
            border, room = len(generation.tokens), part.params.max_tokens
            if progress is not None:
                part = progress.limit_request(part, generation)
            started = self._resources.clock()
            (more,) = await self._resources.engine.generate([part])
            self._add_pace(more, started)
            generation = join_generations(generation, more)
            if progress is not None:
                generation = await progress.review(generation, border)
                stopping = with_max_tokens(stopping, params.max_tokens - progress.num_lost)
            elif is_stretch:
                generation = cut_at_stop(generation, border, params.stop, decode)
            end = rule.find_end(generation.tokens, start, decode, generation.entropies)
            step = make_step(generation, 0, end, decode)
            has_stop = bool(step.tokens) and _has_stop(step, request)
            is_part = is_stretch or part.params.max_tokens < room or generation.finish != more.finish
            goes_on = generation.finish == "stop" or (is_part and generation.finish == "length")
            was_early = end is None and more.tokens and goes_on and not has_stop
            if progress is not None and progress.must_interrupt(generation):
                if generation.tokens:
                    may_go_on = True
                    break
                generation = progress.interrupt(generation)  # what was written is taken off, down to the beginning
                start = len(generation.tokens)
                continue
            if not was_early or len(generation.tokens) >= stopping.params.max_tokens:
                break
        if end is not None and end < len(generation.tokens):
            unused = Usage(unused_tokens=len(generation.tokens) - end)
            # the hidden state is that of the last token, which was taken off
            generation = replace(generation, usage=generation.usage + unused, hidden=None)
        if generation.finish == "stop" and end is None and more.tokens and not has_stop:
            generation = replace(generation, finish="length")  # a text that might have ended a step came with its limit
        is_complete = end is not None and (end < len(generation.tokens) or generation.finish in ("stop", "length"))
        is_open = (is_complete or (may_go_on and generation.finish == "length")) and not has_stop
        continuation = self._complete(generation, [step] if step.tokens else [], path, progress, is_open=is_open)
        if self._has_listener:
            await self._report(continuation)
        return continuation

    def _add_pace(self, generation: Generation, started: float) -> None:
        # not a coroutine around the engine's: each call between a search and the forward pass costs every request
        if self._time is not None:
            self._time.add_generation(len(generation.tokens), self._resources.clock() - started)

    def _watch(self, thought: OpenThought | None, request: GenerationRequest) -> ThoughtProgress | None:
        resources = self._resources
        return None if thought is None else ThoughtProgress(thought, request, resources.engine, resources.decode)

    def _complete(
        self,
        generation: Generation,
        steps: list[Step],
        path: Sequence[Step],
        progress: ThoughtProgress | None,
        *,
        is_open: bool,
    ) -> Continuation:
        """Returns what was written as a continuation whose scoring has begun."""
        steps = attribute_steps(steps, generation.origins)
        is_scored = bool(steps) and generation.finish != "dropped"
        scoring = None if self._scoring is None or not is_scored else self._scoring.score([*path, *steps])
        if generation.top_logprobs is not None or generation.entropies is not None:
            # the steps have what is used of these
            generation = replace(generation, top_logprobs=None, entropies=None)
        if progress is None:
            return Continuation(generation, steps, is_open, scoring)
        history, usage, is_late = progress.history, progress.probe_usage, progress.is_late
        return Continuation(generation, steps, is_open, scoring, history, usage, is_late)

    async def _report(self, continuation: Continuation) -> None:
        last_score = None
        if continuation.scoring is not None:
            started = self._resources.clock()
            scores = (await continuation.scoring).scores
            last_score = scores[-1] if scores else None
            if self._time is not None:
                self._time.add_scoring(self._resources.clock() - started)
        if self._resources.on_step is not None and continuation.steps:
            self._resources.on_step(StepEvent(continuation.steps, last_score))


def _has_stop(step: Step, request: GenerationRequest) -> bool:
    """Whether one of the request's own stops ended a step."""
    params = request.params
    return step.tokens[-1] in params.stop_token_ids or any(map(step.text.__contains__, params.stop))
