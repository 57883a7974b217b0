"""The reward-model reader made of SGLang servers: sends token sequences, returns the outputs of the model's head."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from decoding.core import HeadOutputs, Tokens
from reason.engines.http.errors import RequestRejected, ResponseLost, TransientError
from reason.engines.sglang_client.capabilities import ServerCapabilities, VocabularyTokenizer, probe_server
from reason.engines.sglang_client.dispatcher import AbortableRequest, Dispatcher
from reason.engines.sglang_client.head_queries import HeadQuery, RewardHeadQuery
from reason.engines.sglang_client.server import SGLangServer
from reason.engines.sglang_client.wire import is_aborted


class SGLangReader:
    """Implements `core.Reader` over SGLang servers; threads, retries and errors are those of `SGLangEngine`.

    dispatcher  client of servers that all serve the reward model, or of a router; closed with the reader
    query       how the outputs of its head are asked for
    vocab_size  ids from here on would crash a server and are not sent
    tokenizer   its vocabulary is compared with the servers'

    Raises: ValueError or ConnectionError where a server does not answer or does not serve this model.
    """

    def __init__(
        self, dispatcher: Dispatcher, query: HeadQuery, *, vocab_size: int, tokenizer: VocabularyTokenizer
    ) -> None:
        self._dispatcher, self._query, self._vocab_size = dispatcher, query, vocab_size
        probe = partial(_probe_reward_server, query=query, tokenizer=tokenizer, vocab_size=vocab_size)
        self.capabilities = ServerCapabilities.common_to(dispatcher.probe_servers(probe))

    @property
    def max_tokens(self) -> int | None:
        """Length of the longest sequence that the servers accept; None if they do not report it."""
        return self.capabilities.max_input_tokens

    async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int], group: str = "") -> list[HeadOutputs]:
        """See `core.Reader`; `group` is the problem, whose prefixes are cached at its server.

        Raises: ValueError before anything is sent; RequestRejected, OversizedRequest, NoServer; RuntimeError if closed.
        """
        for token in {token for sequence in sequences for token in sequence}:
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"token id {token} is outside the reward model's vocabulary of {self._vocab_size}")
        pairs = zip(sequences, starts, strict=True)
        return await self._dispatcher.session.run_all(
            [self._encode_one(tokens, start, group) for tokens, start in pairs]
        )

    def close(self) -> None:
        """Takes back the requests at the servers. Calling it twice is harmless."""
        self._dispatcher.session.close()

    async def _encode_one(self, tokens: Tokens, start: int, group: str) -> HeadOutputs:
        request = AbortableRequest(send=_PrefillCall(tokens, start, self._query), problem=group)
        outputs = await self._dispatcher.dispatch(request)
        assert outputs is not None, "there was no deadline"
        return outputs


@dataclass(frozen=True)
class SessionAffinity:
    """A reader whose requests all belong to one problem, so that they reach the server with its prefixes."""

    reader: SGLangReader
    problem: str

    async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[HeadOutputs]:
        """See `core.Reader`."""
        return await self.reader.encode(sequences, starts, self.problem)


@dataclass(frozen=True)
class _PrefillCall:
    """`AbortableRequest.send` of one sequence."""

    tokens: Tokens
    start: int
    query: HeadQuery

    async def __call__(self, server: SGLangServer, in_flight: AbortableRequest[HeadOutputs]) -> HeadOutputs:
        reply = await server.generate(self.query.build_body(self.tokens, self.start, in_flight.renew_id()))
        if is_aborted(reply) and not in_flight.is_expired:
            raise ResponseLost(f"{server.url} aborted a request without being asked to")
        return self.query.parse_outputs(reply, len(self.tokens) - self.start)


async def _probe_reward_server(
    server: SGLangServer, *, query: HeadQuery, tokenizer: VocabularyTokenizer, vocab_size: int
) -> ServerCapabilities:
    """Probes a server, and whether it serves this head. Raises: as `probe_server`."""
    capabilities = await probe_server(server, tokenizer, vocab_size)
    try:
        with server.name_in_errors():
            reply = await server.generate(query.build_body((0, 0), 1, uuid.uuid4().hex))
            query.parse_outputs(reply, 1)
    except TransientError as error:
        raise ConnectionError(f"{error}; is the server up? /health tells") from error
    except RequestRejected as error:
        raise ValueError(f"not a server of this model: {error}") from error
    if isinstance(query, RewardHeadQuery) and not query.is_from_head(reply):
        raise ValueError(
            f"{server.url} serves a language model and not this reward model's head; start it with "
            "SGLANG_EXTERNAL_MODEL_PACKAGE=reason.decoding.sglang_plugin.models, as `reason serve-models` does"
        )
    return capabilities
