"""Prometheus metrics of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from decoding.stats import EngineStats

LATENCY_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)


class ServerMetrics:
    """Counters of one server. `running`, `waiting` and `engine` are called for each report of the metrics.

    `engine` returns the engine's statistics, or None while the models are being loaded.
    """

    def __init__(
        self, running: Callable[[], int], waiting: Callable[[], int], engine: Callable[[], EngineStats | None]
    ) -> None:
        self._registry = CollectorRegistry()
        labels = ("endpoint", "preset", "status")
        self._requests = Counter("reason_requests", "Requests answered", labels, registry=self._registry)
        self._seconds = Histogram(
            "reason_request_seconds",
            "Seconds of a request",
            ("endpoint",),
            buckets=LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self._tokens = Counter("reason_generated_tokens", "Tokens generated", ("preset",), registry=self._registry)
        self._prompt_tokens = Counter(
            "reason_prompt_tokens",
            "Prompt tokens sent to the engine, cached ones included",
            ("preset",),
            registry=self._registry,
        )
        self._cost = Counter("reason_cost", "Price of the tokens (serve.prices)", ("preset",), registry=self._registry)
        self._registry.register(_StateCollector(running, waiting, engine))
        ProcessCollector(registry=self._registry)

    def count_request(self, endpoint: str, preset: str, status: int, seconds: float) -> None:
        """Counts a finished request; status 499 means that the client disconnected."""
        self._requests.labels(endpoint, preset, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def count_tokens(self, preset: str, tokens: int, prompt_tokens: int = 0, cost: float | None = None) -> None:
        """Counts the tokens of a finished search, generated and sent, and their price if they have one."""
        self._tokens.labels(preset).inc(tokens)
        self._prompt_tokens.labels(preset).inc(prompt_tokens)
        if cost is not None:
            self._cost.labels(preset).inc(cost)

    def format_metrics(self) -> bytes:
        """Returns all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class _StateCollector(Collector):
    """Reads the server's and the engine's current state for each report."""

    def __init__(
        self, running: Callable[[], int], waiting: Callable[[], int], engine: Callable[[], EngineStats | None]
    ) -> None:
        self._running, self._waiting, self._engine = running, waiting, engine

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("reason_searches_running", "Searches that are running", value=self._running())
        yield GaugeMetricFamily("reason_requests_waiting", "Requests in the queue", value=self._waiting())
        stats = self._engine()
        if stats is None:
            return
        kv_tokens = stats.resident_tokens if stats.running else 0
        yield GaugeMetricFamily("reason_engine_branches_running", "Branches decoded together", value=stats.running)
        yield GaugeMetricFamily(
            "reason_engine_branches_waiting", "Branches that wait to be decoded", value=stats.waiting
        )
        yield GaugeMetricFamily("reason_engine_kv_tokens", "KV tokens that running branches hold", value=kv_tokens)
        yield GaugeMetricFamily(
            "reason_engine_kv_capacity_tokens", "KV tokens that fit into the pool", value=stats.capacity_tokens
        )
        yield CounterMetricFamily("reason_engine_forwards", "Forward passes of the target model", value=stats.rounds)
        yield CounterMetricFamily(
            "reason_engine_tokens", "Tokens generated, those of cancelled searches included", value=stats.tokens
        )
        yield CounterMetricFamily("reason_engine_drafted_tokens", "Draft tokens verified", value=stats.drafted)
        yield CounterMetricFamily("reason_engine_accepted_tokens", "Draft tokens accepted", value=stats.accepted)
        yield CounterMetricFamily("reason_engine_rounds_seconds", "Seconds in rounds", value=stats.seconds_rounds)
        if stats.seconds_saved is not None:
            yield GaugeMetricFamily(
                "reason_engine_saved_seconds",
                "Seconds that rounds without drafts would have taken more, estimated; below 0 where drafts cost time",
                value=stats.seconds_saved,
            )
        yield CounterMetricFamily(
            "reason_engine_preemptions", "Branches preempted because the KV pool was full", value=stats.preemptions
        )
