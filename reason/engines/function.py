"""Generates text with a function of the user, named on the command line."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from decoding.core import FinishReason, Generation, GenerationRequest, Usage
from decoding.stats import EngineStats
from decoding.validation import require_count, require_switch
from reason.config.errors import ConfigError
from reason.config.plugins import find_function, require_function
from reason.engines.base import EngineSettings, EngineUse, SpeculationFactory
from reason.models.byte_tokenizer import BYTES, ByteTokenizer, parse_conversation
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer


@dataclass(frozen=True, kw_only=True)
class FunctionSettings(EngineSettings):
    """Calls `function(messages, temperature=, max_tokens=, stop=, seed=)`, which returns the text of an answer.

    function     MODULE:NAME, of a module that `plugins` lists
    continues    whether it goes on behind a last message of the assistant, the beginning of an answer
    max_calls  calls at a time

    Raises: ValueError naming the knob, its constraint and its value.
    """

    function: str | None
    continues: bool = False
    max_calls: int = 64

    is_remote: ClassVar[bool] = True  # no hidden states, no speculation
    needs_checkpoint: ClassVar[bool] = False

    @property
    def gives_logprobs(self) -> bool:
        """See `EngineSettings`."""
        return False

    @property
    def continues_text(self) -> bool:
        """See `EngineSettings`."""
        return self.continues

    def __post_init__(self) -> None:
        require_switch("continues", self.continues)
        require_count("max_calls", self.max_calls, at_least=1)
        if self.function is not None:  # else `require_packages` asks for one
            require_function(self.function)

    def require_packages(self) -> None:
        """Looks the function up. Raises: ValueError."""
        find_function("function", self.function)

    def adapt_to(self, use: EngineUse) -> Self:
        """See `EngineSettings`."""
        if use.checkpoint.source != BYTES:
            setting = "model=served" if use.key == "engine" else f"{use.key}.path=bytes"
            raise ConfigError(f"{use.key}=function takes conversations and returns text; it goes with {setting}")
        if use.continued_by is not None and not self.continues:
            raise ConfigError(
                f"{use.continued_by} continues earlier output; set {use.key}.continues=true if your function can, or "
                "choose search=best_of_n or search=self_consistency"
            )
        return super().adapt_to(use)

    def open_engine(
        self, checkpoint: Checkpoint, *, tokenizer: PretrainedTokenizer, speculation: SpeculationFactory | None
    ) -> FunctionEngine:
        """See `EngineSettings`."""
        return FunctionEngine(find_function("function", self.function), self.max_calls)


class FunctionEngine:
    """Implements `Engine` with a function. A token is a byte of what it returns."""

    def __init__(self, function: Callable[..., Any], max_calls: int) -> None:
        self._function = function
        self._threads = ThreadPoolExecutor(max_calls, thread_name_prefix="engine.function")
        self._running = asyncio.Semaphore(max_calls)
        self._tokenizer, self._stats = ByteTokenizer(), EngineStats()

    @property
    def stats(self) -> EngineStats:
        """See `Engine`."""
        return replace(self._stats)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `TokenGenerator`. Raises: ValueError where no text is returned, and what the function raises."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._generate_one(request)) for request in requests]
        except ExceptionGroup as error:
            raise error.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _generate_one(self, request: GenerationRequest) -> Generation:
        parsed = parse_conversation(self._tokenizer.decode(request.prefix))
        if parsed is None:
            raise ValueError("engine.function takes conversations; leave model.prompt.raw null")
        fields, begun = parsed
        messages = [*_as_list(fields["messages"])]
        if begun:
            messages.append({"role": "assistant", "content": begun})
        params = request.params
        options = {"temperature": params.temperature, "max_tokens": params.max_tokens, "stop": list(params.stop)}
        left_s = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
        try:
            async with asyncio.timeout(left_s), self._running:
                text = await self._call(messages, **options, seed=request.seed)
        except TimeoutError:
            if request.deadline is None or time.monotonic() < request.deadline:
                raise  # the function's own
            usage = Usage(calls=1, prompt_tokens=len(request.prefix))
            return Generation(tokens=(), logprobs=(), finish="deadline", usage=usage)
        if not isinstance(text, str):
            raise ValueError(f"engine.function must return the text of an answer, got {text!r:.80}")
        text, finish = _end_at_stop(text, params.stop)
        tokens = tuple(self._tokenizer.encode(text))
        if finish == "eos":
            tokens += (self._tokenizer.eos_token_id,)
        self._stats.tokens += len(tokens)
        return Generation(
            tokens=tokens,
            logprobs=(),
            finish=finish,
            usage=Usage(calls=1, tokens=len(tokens), prompt_tokens=len(request.prefix), forwards=len(tokens)),
        )

    async def _call(self, messages: list[object], **options: object) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(messages, **options)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: self._function(messages, **options))

    def close(self) -> None:
        """Ends the threads; calls that run go on to their end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def assert_invariants(self) -> None:
        """See `Engine`; nothing is held."""


def _as_list(messages: object) -> list[object]:
    assert isinstance(messages, list)
    return messages


def _end_at_stop(text: str, stops: Sequence[str]) -> tuple[str, FinishReason]:
    """Returns the text up to the first stop string, with it, and why it ended."""
    ends = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not ends:
        return text, "eos"
    place, stop = min(ends)
    return text[: place + len(stop)], "stop"
