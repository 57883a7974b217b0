"""A generation, as an errand to a server: asked for, and read again where its log-probabilities were told otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from decoding.core import GenerationRequest
from reason.engines.sglang_client.capabilities import Facts
from reason.engines.sglang_client.dispatcher import Errand
from reason.engines.sglang_client.errors import Lost
from reason.engines.sglang_client.server import Server
from reason.engines.sglang_client.wire import Reply, generate_body, logprobs_of, read_body, reply_of


@dataclass(frozen=True)
class Writing:
    """What `Errand.ask` is for a generation; `facts` are those of the servers."""

    request: GenerationRequest
    facts: Facts

    async def __call__(self, server: Server, errand: Errand[Reply]) -> Reply:
        body = generate_body(self.request, errand.rename(), self._max_tokens())
        reply = reply_of(await server.generate(body))
        if reply.reason == "abort" and not errand.late:
            raise Lost(f"{server.url} aborted a request that nobody had taken back")
        return await self._original(server, errand, reply)

    async def _original(self, server: Server, errand: Errand[Reply], reply: Reply) -> Reply:
        """The reply with log-probabilities at temperature 1. Where the server tells those after temperature, it is made
        to read what it wrote: one forward pass, the prefix out of its cache."""
        if not (self._reads_again and reply.tokens):
            return reply
        prefix = self.request.prefix
        body = read_body(prefix + reply.tokens, len(prefix), errand.rename())
        return replace(reply, logprobs=logprobs_of(await server.generate(body), len(reply.tokens)))

    @property
    def _reads_again(self) -> bool:
        return not self.facts.original_logprobs and self.request.params.temperature not in (0, 1)

    def _max_tokens(self) -> int:
        """How many tokens to ask for: what will be read again must fit what a server reads."""
        most, readable = self.request.params.max_tokens, self.facts.readable
        if readable is None or not self._reads_again:
            return most
        return max(1, min(most, readable - len(self.request.prefix)))
