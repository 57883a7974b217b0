"""Servers that attack the client: nothing hangs, no nonsense is believed, no key is shown, no problem fails for it."""

from __future__ import annotations

from collections.abc import Sequence

import httpx2
import pytest

from tests.support.hostile_behaviours import BEHAVIOURS
from tests.support.hostile_behaviours_connection import ROWS as CONNECTION_ROWS
from tests.support.hostile_clients import KEY
from tests.support.hostile_exchange import Behaviour
from tests.support.hostile_replies import Dialect
from tests.support.hostile_server import HostileServer
from tests.support.hostile_trials import (
    Trial,
    behaviours_of,
    collected_logs,
    measure_peak_mb,
    run_trials,
    try_alone,
    try_beside_a_healthy_server,
    try_close_under_way,
    try_start,
    wait_for,
)

DIALECTS: tuple[Dialect, ...] = ("openai-stream", "sglang")
"""A server of the first is sent whole answers and streamed steps."""
BOMBS = (
    *("body_of_50_mb", "body_of_50_mb_of_error", "body_of_5_gb", "gzip_bomb", "gzip_bomb_in_gzip", "deflate_bomb"),
    *("headers_flood", "stream_of_tokens_without_end", "stream_of_comments_without_end", "stream_without_newlines"),
)
"""Behaviours that send more than fits into memory."""


def require_no_failure(
    trial: Trial, dialect: Dialect, behaviours: Sequence[Behaviour] | None = None, *, at_once: int = 24
) -> None:
    """Runs a trial with every behaviour, or with those given. Neither the key nor a forgotten error may be logged."""
    with collected_logs("reason", "httpx2", "asyncio") as lines:
        failures = run_trials(trial, dialect, behaviours or behaviours_of(dialect), at_once=at_once)
    assert not failures, "\n".join(failures)
    assert lines
    assert KEY not in "".join(lines)
    assert not [line for line in lines if "never retrieved" in line or "nhandled" in line]


@pytest.mark.parametrize("dialect", DIALECTS)
class TestEngine:
    def test_request_alone_is_answered_sanely_or_fails_with_a_typed_error(self, dialect: Dialect) -> None:
        require_no_failure(try_alone, dialect)

    def test_no_request_fails_beside_a_healthy_server(self, dialect: Dialect) -> None:
        require_no_failure(try_beside_a_healthy_server, dialect)

    def test_start_ends_with_one_sentence(self, dialect: Dialect) -> None:
        require_no_failure(try_start, dialect, at_once=64)

    def test_close_returns_while_a_request_is_under_way(self, dialect: Dialect) -> None:
        endless = [*CONNECTION_ROWS, *(BEHAVIOURS[name] for name in BOMBS)]
        require_no_failure(try_close_under_way, dialect, endless, at_once=8)

    def test_memory_is_bounded_whatever_the_size_of_a_reply(self, dialect: Dialect) -> None:
        peaks = {name: measure_peak_mb(dialect, BEHAVIOURS[name]) for name in BOMBS}
        assert max(peaks.values()) < 100, peaks


class TestServer:
    def test_every_dialect_has_many_behaviours(self) -> None:
        assert min(len(behaviours_of(dialect)) for dialect in DIALECTS) >= 60

    def test_behaviour_is_switched_while_it_runs(self) -> None:
        with HostileServer("openai") as server:
            assert httpx2.get(f"{server.url}/models").json()["data"][0]["id"] == "toy"
            server.behaviour = "status_500"
            assert httpx2.get(f"{server.url}/models").status_code == 500
            server.behaviour = "healthy"
            assert httpx2.get(f"{server.url}/models").status_code == 200
            assert (server.num_connections, server.paths) == (3, ["/v1/models"] * 3)

    def test_unknown_behaviour_is_refused(self) -> None:
        with HostileServer("sglang") as server, pytest.raises(KeyError):
            server.behaviour = "kind"

    def test_client_that_gives_up_is_counted(self) -> None:
        with HostileServer("openai", "silence_after_request") as server:
            with pytest.raises(httpx2.ReadTimeout):
                httpx2.get(f"{server.url}/models", timeout=0.1)
            wait_for(lambda: server.num_dropped == 1, "the closed connection was not noticed")
            assert server.num_open == 0
