"""What the server does, in Prometheus' words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)


class Metrics:
    """Counters of one server. `running`, `waiting` and `engine` are asked when somebody looks; `engine` gives an
    engine's statistics, or None where there are none yet."""

    def __init__(self, running: Callable[[], int], waiting: Callable[[], int], engine: Callable[[], Any]) -> None:
        self._registry = CollectorRegistry()
        labels = ("endpoint", "preset", "status")
        self._requests = Counter("reason_requests", "Requests answered", labels, registry=self._registry)
        self._seconds = Histogram(
            "reason_request_seconds", "Seconds of a request", ("endpoint",), buckets=SECONDS, registry=self._registry
        )
        self._tokens = Counter("reason_generated_tokens", "Tokens generated", ("preset",), registry=self._registry)
        self._registry.register(_Now(running, waiting, engine))
        ProcessCollector(registry=self._registry)

    def answered(self, endpoint: str, preset: str, status: int, seconds: float) -> None:
        """A request is over; status 499 is a client that went away."""
        self._requests.labels(endpoint, preset, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def searched(self, preset: str, tokens: int) -> None:
        """A search came to an end and has generated so many tokens."""
        self._tokens.labels(preset).inc(tokens)

    def text(self) -> bytes:
        """All of it, in the text format."""
        return generate_latest(self._registry)


class _Now(Collector):
    """Reads what is the case when it is asked."""

    def __init__(self, running: Callable[[], int], waiting: Callable[[], int], engine: Callable[[], Any]) -> None:
        self._running, self._waiting, self._engine = running, waiting, engine

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("reason_searches_running", "Searches under way", value=self._running())
        yield GaugeMetricFamily("reason_requests_waiting", "Requests that wait for their turn", value=self._waiting())
        stats = self._engine()
        if stats is None:
            return
        held = stats.resident_tokens if stats.running else 0
        yield GaugeMetricFamily("reason_engine_branches_running", "Branches decoded together", value=stats.running)
        yield GaugeMetricFamily("reason_engine_branches_waiting", "Branches that wait to be", value=stats.waiting)
        yield GaugeMetricFamily("reason_engine_kv_tokens", "KV tokens that running branches hold", value=held)
        yield GaugeMetricFamily(
            "reason_engine_kv_capacity_tokens", "KV tokens there is room for", value=stats.capacity_tokens
        )
        yield CounterMetricFamily("reason_engine_forwards", "Forward passes of the writer", value=stats.rounds)
        yield CounterMetricFamily(
            "reason_engine_tokens", "Tokens written, of cancelled searches too", value=stats.tokens
        )
        yield CounterMetricFamily("reason_engine_drafted_tokens", "Tokens guessed", value=stats.drafted)
        yield CounterMetricFamily("reason_engine_accepted_tokens", "Guesses that stayed", value=stats.accepted)
        yield CounterMetricFamily(
            "reason_engine_preemptions", "Branches sent back for want of room", value=stats.preemptions
        )
