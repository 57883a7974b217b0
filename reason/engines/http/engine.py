"""The part that the engines made of servers share: checks, running requests together, deadlines, counters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from decoding.core import Generation, GenerationRequest, OversizedRequest, Usage
from reason.engines.http.client import HttpSession
from reason.engines.http.in_flight import InFlightRequest
from reason.engines.http.stats import ClientStats


class HttpEngine(ABC):
    """Implements `core.Engine` over servers; subclasses define one request. Callable from any thread and event loop.

    session  connections to the servers; closed with the engine
    stats    counters, also written by the parts that send requests
    """

    def __init__(self, session: HttpSession, stats: ClientStats) -> None:
        self._session, self._stats = session, stats

    @property
    def stats(self) -> ClientStats:
        """A snapshot; cheap, callable at any time."""
        return self._stats.take_snapshot()

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Returns one generation per request, in order. Cancelling the call takes all of them back from the servers.

        Raises: OversizedRequest or ValueError before anything is sent; NoServer; RuntimeError once closed.
        """
        for request in requests:
            self.validate(request)
        return await self._session.run_all([self._generate_counted(request) for request in requests])

    def validate(self, request: GenerationRequest) -> None:
        """Raises OversizedRequest or ValueError for a request that the servers cannot answer."""
        if request.hidden:
            raise ValueError("a server does not give hidden states; choose embedder=words")
        self._validate_content(request)
        limit = self._max_total_tokens()
        total = len(request.prefix) + request.params.max_tokens
        if limit is not None and total > limit:
            terms = f"{len(request.prefix)} prefix tokens + max_tokens={request.params.max_tokens} = {total} tokens"
            raise OversizedRequest(f"{terms} exceed the servers' limit of {limit} tokens: lower sampling.max_tokens")

    def close(self) -> None:
        """Takes back the requests at the servers and ends the client's thread. Calling it twice is harmless."""
        self._session.close()

    def assert_invariants(self) -> None:
        """Asserts that no request is open; called when the engine is idle."""
        assert self._stats.running == self._stats.waiting == 0, (self._stats.running, self._stats.waiting)

    async def _generate_counted(self, request: GenerationRequest) -> Generation:
        generation = await self._generate_one(request)
        self._stats.add_usage(generation.usage)
        return generation

    @abstractmethod
    def _validate_content(self, request: GenerationRequest) -> None:
        """Raises ValueError for a prefix or parameters that may not be sent."""

    @abstractmethod
    def _max_total_tokens(self) -> int | None:
        """Returns the limit of the servers on prefix and generation together; None if it is not known."""

    @abstractmethod
    async def _generate_one(self, request: GenerationRequest) -> Generation:
        """Sends a checked request and returns its generation."""


def empty_generation(request: GenerationRequest, in_flight: InFlightRequest) -> Generation:
    """Returns the generation of a request whose deadline passed before any token came back."""
    usage = Usage(calls=1, prompt_tokens=len(request.prefix), seconds=in_flight.elapsed_s)
    return Generation(tokens=(), logprobs=(), finish="deadline", usage=usage)
