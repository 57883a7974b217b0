"""A reward model that servers hold, as a Reader: sequences are carried there, the outputs of its head come back."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from decoding.core import Tokens
from reason.engines.sglang_client.capabilities import Facts, meet
from reason.engines.sglang_client.client import Client
from reason.engines.sglang_client.dispatcher import Errand
from reason.engines.sglang_client.errors import Lost, Passing, Refused
from reason.engines.sglang_client.outputs import Head, Outcome, Outputs
from reason.engines.sglang_client.server import Server


class RemoteReader:
    """Implements `core.Reader` over SGLang servers; the rules of `RemoteEngine` for threads, retries and losses hold.

    client      to servers that all hold the model, or to a router in front of them; closed with the reader
    outcome     what its head puts out
    vocab_size  ids from here on would kill a server and are not sent
    tokenizer   what the servers' is compared with

    Raises: ValueError or ConnectionError where a server is not what is needed, or not there.
    """

    def __init__(self, client: Client, outcome: Outcome, *, vocab_size: int, tokenizer: Any) -> None:
        self._client, self._outcome, self._vocab_size = client, outcome, vocab_size
        met = client.meet(partial(_meet, outcome=outcome, tokenizer=tokenizer, vocab_size=vocab_size))
        self._facts = Facts.common(met)

    @property
    def room(self) -> int | None:
        """The longest sequence that the servers read; None if they do not say."""
        return self._facts.readable

    async def read(self, sequences: Sequence[Tokens], starts: Sequence[int], group: str = "") -> list[Outputs]:
        """See `core.Reader`; `group` is the problem, whose prefixes are cached where it is at home.

        Raises: ValueError before anything is sent; Refused, OversizedRequest, NoServer; RuntimeError once closed.
        """
        for token in {token for sequence in sequences for token in sequence}:
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"token id {token} is outside the reward model's vocabulary of {self._vocab_size}")
        pairs = zip(sequences, starts, strict=True)
        return await self._client.together([self._read(tokens, start, group) for tokens, start in pairs])

    def close(self) -> None:
        """Takes back what is with the servers. Calling it twice is harmless."""
        self._client.close()

    async def _read(self, tokens: Tokens, start: int, group: str) -> Outputs:
        reply = await self._client.reply(Errand(ask=_Reading(tokens, start, self._outcome), group=group))
        assert reply is not None, "there was no deadline"
        return reply


@dataclass(frozen=True)
class AtHome:
    """A reader for one problem."""

    reader: RemoteReader
    problem: str

    async def read(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[Any]:
        """See `core.Reader`."""
        return list(await self.reader.read(sequences, starts, self.problem))


@dataclass(frozen=True)
class _Reading:
    """What `Errand.ask` is for one sequence."""

    tokens: Tokens
    start: int
    outcome: Outcome

    async def __call__(self, server: Server, errand: Errand[Outputs]) -> Outputs:
        reply = await server.generate(self.outcome.body(self.tokens, self.start, errand.rename()))
        finish = reply.get("meta_info", {}).get("finish_reason") if isinstance(reply, dict) else None
        if isinstance(finish, dict) and finish.get("type") == "abort" and not errand.late:
            raise Lost(f"{server.url} aborted a request that nobody had taken back")
        return self.outcome.outputs(reply, len(self.tokens) - self.start)


async def _meet(server: Server, *, outcome: Outcome, tokenizer: Any, vocab_size: int) -> Facts:
    """Raises: ConnectionError if it does not answer, ValueError if it is not what is needed, in one sentence."""
    facts = await meet(server, tokenizer, vocab_size)
    try:
        reply = await server.generate(outcome.body((0, 0), 1, uuid.uuid4().hex))
        outcome.outputs(reply, 1)
    except Passing as fault:
        raise ConnectionError(f"{fault}; is the server up? /health tells") from fault
    except Refused as fault:
        raise ValueError(f"not a server of this model: {fault}") from fault
    if isinstance(outcome, Head) and not outcome.served(reply):
        raise ValueError(
            f"{server.url} serves a language model and not this reward model's head; start it with "
            "SGLANG_EXTERNAL_MODEL_PACKAGE=decoding.sglang_plugin.models, as scripts/serve_models.py does"
        )
    return facts
