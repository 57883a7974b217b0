"""The engine made of OpenAI-compatible servers: ids to text, text to a server and back, and ids of what it said."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from decoding.core import FinishReason, Generation, GenerationRequest, OversizedRequest, Spent, Tokens
from reason.engines.openai_api.endpoint import Endpoint
from reason.engines.openai_api.probe import Facts, meet
from reason.engines.openai_api.text_codec import Spelling
from reason.engines.openai_api.wire import Ended, Form, Reply, reply_of
from reason.engines.sglang_client.calls import Calls
from reason.engines.sglang_client.errors import Lost, Unreachable
from reason.engines.sglang_client.retry_policy import Attempts, Errand
from reason.engines.sglang_client.session_affinity import Worker, Workers
from reason.engines.sglang_client.stats import RemoteStats
from reason.models.byte_tokenizer import ByteText

log = logging.getLogger(__name__)

_LONGEST_S = 20.0  # between attempts: vendors count requests by the minute


class EndpointEngine:
    """Implements `core.Engine` over OpenAI-compatible servers. May be called from any thread and several event loops.

    A request is one HTTP request with a seed of its own. Several samples in one (`n`) would share the work on the
    prompt, which servers with a prefix cache share anyway, but one seed for all is not what a branch's seed means,
    some servers give one sample whatever `n` says, and one failure would lose all.

    urls               of servers that all serve the model, with the version (/v1)
    form               how they are asked
    tokenizer          says which ids a text becomes; `ByteText` where nobody here knows the model's own
    key                the API key; sent, and never said
    request_timeout_s  a server that takes longer over one request hangs
    patience_s         how long to wait while no server answers, or all are full and nothing gets through
    most               requests that one server has at once; the others wait here
    losses             replies that one request may lose before it is held to be the reason
    rest_s             how long a server that failed is left alone
    shortest_s         the first wait before a request is sent again is at most so long; the next ones grow

    Raises: ValueError or ConnectionError where a server is not what is needed, or not there.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        form: Form,
        tokenizer: Any,
        key: str | None = None,
        request_timeout_s: float = 600.0,
        patience_s: float = 600.0,
        most: int = 64,
        losses: int = 6,
        rest_s: float = 5.0,
        shortest_s: float = 0.5,
    ) -> None:
        self._calls = Calls(request_timeout_s, None if key is None else {"Authorization": f"Bearer {key}"})
        self._stats = RemoteStats()
        self._form, self._spelling = form, Spelling(tokenizer)
        self._knows_tokens = not isinstance(tokenizer, ByteText)
        servers = [Endpoint(url, self._calls.http, key) for url in urls]
        self._facts = Facts.common(self._calls.introduce([meet(server, form) for server in servers]))
        self._workers = Workers(servers, most=most, rest_s=rest_s)
        self._attempts = Attempts(
            self._workers,
            self._stats,
            patience_s=patience_s,
            losses=losses,
            full_s=patience_s,
            shortest_s=shortest_s,
            longest_s=_LONGEST_S,
        )
        log.warning("%s: %s", ", ".join(urls), self._lost())

    @property
    def facts(self) -> Facts:
        """What the servers turned out to be; where they differ, what holds of all."""
        return self._facts

    @property
    def stats(self) -> RemoteStats:
        """A snapshot; cheap, callable at any time."""
        snapshot = self._stats.snapshot()
        assert isinstance(snapshot, RemoteStats)
        return snapshot

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation per request, in order. Cancelling takes all of them back from the servers.

        Raises: OversizedRequest or ValueError before anything is sent; NoServer; RuntimeError once closed.
        """
        for request in requests:
            self._validate(request)
        return await self._calls.together([self._run(request) for request in requests])

    def close(self) -> None:
        """Takes back what is with the servers and ends the client's thread. Calling it twice is harmless."""
        self._calls.close()

    def _lost(self) -> str:
        """What is lost against an engine in this process, in one line."""
        parts = ["text in, text out: no hidden states, guessing is the server's own affair"]
        parts += [] if self._form.logprobs else ["no log-probabilities"]
        parts += [] if self._knows_tokens else ["lengths in trees are bytes"]
        parts += [] if self._facts.says_ended else ["steps are streamed, because it does not say what ended a text"]
        return "; ".join([*parts, "sampled text repeats as far as the server keeps to seeds"])

    def _validate(self, request: GenerationRequest) -> None:
        if request.hidden:
            raise ValueError("a server does not give hidden states; choose embedder=words")
        self._form.check(request.params)
        self._form.asked(self._spelling.text(request.prefix))
        total = len(request.prefix) + request.params.max_tokens
        if self._knows_tokens and self._facts.tokens is not None and total > self._facts.tokens:
            asked = f"{len(request.prefix)} prefix tokens + max_tokens={request.params.max_tokens} = {total} tokens"
            raise OversizedRequest(f"{asked} exceed the servers' limit of {self._facts.tokens} tokens")

    async def _run(self, request: GenerationRequest) -> Generation:
        self._stats.came()
        try:
            generation = await self._written(request)
        finally:
            self._stats.left()
        self._stats.charge(generation.spent)
        return generation

    async def _written(self, request: GenerationRequest) -> Generation:
        errand = Errand(request.group)
        left = None if request.deadline is None else request.deadline - time.monotonic()
        try:
            if left is not None and left <= 0:
                raise TimeoutError
            async with asyncio.timeout(left):
                reply = await self._attempts.answer(errand, partial(self._send, request))
        except TimeoutError:
            spent = Spent(calls=1, prompt_tokens=len(request.prefix), seconds=time.monotonic() - errand.began)
            return Generation(tokens=(), logprobs=(), finish="deadline", spent=spent)
        return self._generation(request, reply, time.monotonic() - errand.began)

    async def _send(self, request: GenerationRequest, worker: Worker[Endpoint]) -> Reply:
        self._stats.sent(True)
        try:
            return await self._ask(worker.server, request)
        except Unreachable:
            self._workers.failed(worker)
            raise
        except Lost:
            if len(self._workers.all) > 1:  # the only one there is goes on with what else it has
                self._workers.failed(worker)
            raise
        except asyncio.CancelledError:
            self._stats.aborted += 1  # by closing the connection
            raise
        finally:
            self._stats.sent(False)

    async def _ask(self, server: Endpoint, request: GenerationRequest) -> Reply:
        stop, form = request.params.stop, self._form
        stream = bool(stop) and not self._facts.says_ended
        body = form.body(self._spelling.text(request.prefix), request.params, request.seed, stream=stream)
        if stream:
            return await server.stream(form.path, body, stop)
        return reply_of(await server.complete(form.path, body))

    def _generation(self, request: GenerationRequest, reply: Reply, seconds: float) -> Generation:
        finish = _finish(reply.ended, bool(request.params.stop))
        tokens, logprobs = self._spelled(request.prefix, reply, finish)
        written = len(tokens) if reply.tokens is None else reply.tokens
        return Generation(
            tokens=tokens,
            logprobs=logprobs,
            finish=finish,
            spent=Spent(
                calls=1,
                tokens=written,
                prompt_tokens=len(request.prefix) if reply.prompt_tokens is None else reply.prompt_tokens,
                cached_tokens=reply.cached_tokens,
                forwards=written,
                seconds=seconds,
            ),
        )

    def _spelled(self, prefix: Tokens, reply: Reply, finish: FinishReason) -> tuple[Tokens, tuple[float, ...]]:
        """What was said as ids, with the end of the text where it ended by itself; and log-probabilities, where the
        server's tokens are ours one by one."""
        end = self._spelling.end if finish == "eos" else ()
        if not reply.pieces:
            return self._spelling.tokens(reply.text, prefix) + end, ()
        pieces, numbers, told_end = _within(reply)
        tokens = self._spelling.of_pieces(pieces, prefix)
        if tokens is None or "".join(pieces) != reply.text:
            return self._spelling.tokens(reply.text, prefix) + end, ()
        if end and told_end is not None:
            return tokens + end, (*numbers, told_end)
        return tokens, numbers


def _within(reply: Reply) -> tuple[list[str], tuple[float, ...], float | None]:
    """The pieces that make up the text and their log-probabilities; that of a piece after them, which is its end."""
    length, count = 0, 0
    for piece, _ in reply.pieces:
        if length == len(reply.text) or length + len(piece) > len(reply.text):
            break
        length, count = length + len(piece), count + 1
    inside, after = reply.pieces[:count], reply.pieces[count:]
    return [piece for piece, _ in inside], tuple(n for _, n in inside), after[0][1] if after else None


def _finish(ended: Ended, had_stop: bool) -> FinishReason:
    if ended == "untold":  # of whole answers, where it makes no difference
        return "stop" if had_stop else "eos"
    return ended
