"""Connections that are slow, many, half-closed, reset, or not read: deadlines, limits, nothing left behind."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from reason.serve.connection import ConnectionConfig, ConnectionLimits, LimitedConnection
from tests.support.raw_client import RawClient, error_code, post_bytes, request_bytes, status_of
from tests.support.toy_server import ToySearchService, chat_body, toy_server, wait_until

HALF_REQUESTS = {
    "request line": b"GET /hea",
    "headers": b"GET /health HTTP/1.1\r\nHost: toy\r\nX-Slow: ",
    "body": post_bytes(chat_body())[:-9],
    "chunks": request_bytes("POST", "/v1/completions", Content_Length="", Transfer_Encoding="chunked"),
    "body after Expect": post_bytes(chat_body(), Expect="100-continue", Content_Length="900"),
}


def assert_idle(client: httpx.Client, service: ToySearchService) -> None:
    """The server holds nothing of earlier requests, and answers."""
    admission = service.admission
    wait_until(lambda: (admission.running, admission.waiting, service.writer.under_way) == (0, 0, 0))
    service.writer.held = False
    assert client.get("/check").json() == {"status": "sound"}
    assert client.post("/v1/chat/completions", json=chat_body()).status_code == 200


@contextmanager
def searching(
    *, stream: bool, ahead: bytes = b"", headers: dict[str, str] | None = None
) -> Iterator[tuple[RawClient, httpx.Client, ToySearchService]]:
    """A client whose search is under way until its connection ends; asserts then that the search is cancelled."""
    with toy_server() as (client, service):
        service.writer.held = True
        with RawClient(client.base_url) as raw:
            raw.send(post_bytes(chat_body(stream=stream), **(headers or {})))
            wait_until(lambda: service.writer.under_way > 0)
            raw.send(ahead)
            yield raw, client, service
            wait_until(lambda: service.writer.under_way == 0)
        wait_until(lambda: 'status="499"} 1.0' in client.get("/metrics").text)
        assert_idle(client, service)


@pytest.mark.parametrize("part", HALF_REQUESTS)
def test_request_that_does_not_arrive_in_time_is_408(part: str) -> None:
    with toy_server(receive_timeout_s=0.3) as (client, service):
        with RawClient(client.base_url) as raw:
            raw.send(HALF_REQUESTS[part])
            reply = raw.read_all().removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert (status_of(reply), error_code(reply)) == (408, "slow_request")
        assert b"serve.receive_timeout_s" in reply
        assert_idle(client, service)


def test_connection_without_a_request_is_closed_without_an_answer() -> None:
    with toy_server(receive_timeout_s=0.3) as (client, _), RawClient(client.base_url) as raw:
        assert raw.read_all() == b""


def test_kept_connection_is_closed_only_when_a_request_would_be() -> None:
    """Not after uvicorn's 5 seconds, which are those of httpx: a client would write to a connection just closed."""

    async def application(*_: object) -> None: ...

    for receive_timeout_s in (0.3, 5.0, 30.0):
        limits = ConnectionLimits(max_connections=4, receive_timeout_s=receive_timeout_s, send_timeout_s=1.0)
        assert ConnectionConfig(application, limits, grace_s=1).timeout_keep_alive > receive_timeout_s
    with toy_server(receive_timeout_s=0.3) as (client, _), RawClient(client.base_url) as raw:
        raw.send(request_bytes("GET", "/health"))
        assert status_of(raw.read_until(b"}")) == 200
        assert raw.read_all() == b""


def test_deadline_counts_from_the_first_byte_of_each_request() -> None:
    with toy_server(receive_timeout_s=4) as (client, _), RawClient(client.base_url) as raw:
        for _ in range(3):  # 4.5 s in all
            time.sleep(1.5)
            raw.send(request_bytes("GET", "/health"))
            assert status_of(raw.read_until(b"}")) == 200


def test_deadline_is_not_for_searches() -> None:
    with toy_server(receive_timeout_s=0.3) as (client, service), RawClient(client.base_url) as raw:
        service.writer.held = True
        raw.send(post_bytes(chat_body(), Connection="close"))
        time.sleep(1)
        service.writer.held = False
        assert status_of(raw.read_all()) == 200


def test_body_that_no_route_reads_must_arrive_in_time_too() -> None:
    """The answer is complete, and the client goes on to send what it has announced, a byte at a time."""
    for request in (request_bytes("GET", "/health", Content_Length="1000"), post_bytes({}, Content_Length="9999999")):
        with toy_server(receive_timeout_s=0.5) as (client, service), RawClient(client.base_url) as raw:
            raw.send(request)
            raw.read_until(b"}")
            raw.send_until_closed(b" ", pause_s=0.05)
            assert_idle(client, service)


def test_300_slow_connections_do_not_hold_up_others_and_are_closed_at_the_deadline() -> None:
    with ExitStack() as stack:
        client, service = stack.enter_context(toy_server(receive_timeout_s=5, max_connections=400))
        slow = [stack.enter_context(RawClient(client.base_url)) for _ in range(300)]
        began = time.monotonic()
        for i, raw in enumerate(slow):
            raw.send(list(HALF_REQUESTS.values())[i % 3])
        while time.monotonic() < began + 3:
            with suppress(ConnectionError):  # a busy machine may be late
                for raw in slow:
                    raw.send(b"x")
            assert client.post("/v1/chat/completions", json=chat_body()).status_code == 200
        replies = [raw.read_all() for raw in slow]
        assert time.monotonic() - began < 60
        assert {status_of(reply) for reply in replies if reply} <= {400, 408}
        assert_idle(client, service)


def test_no_part_of_an_answer_waits_until_the_one_before_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[int] = []
    made = LimitedConnection.connection_made

    def note_option(connection: LimitedConnection, transport: asyncio.Transport) -> None:
        made(connection, transport)
        options.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(LimitedConnection, "connection_made", note_option)
    with toy_server() as (client, _):
        client.get("/health")
    assert options
    assert all(options)


def test_connections_beyond_the_limit_are_503_and_closed() -> None:
    with ExitStack() as stack:
        client, service = stack.enter_context(toy_server(max_connections=3))
        open_ones = [stack.enter_context(RawClient(client.base_url)) for _ in range(3)]
        for raw in open_ones:
            raw.send(request_bytes("GET", "/health"))
            assert status_of(raw.read_until(b"}")) == 200
        reply = stack.enter_context(RawClient(client.base_url)).read_all()
        assert (status_of(reply), error_code(reply)) == (503, "too_many_connections")
        assert b"retry-after: " in reply
        open_ones[0].reset()
        wait_until(lambda: httpx.get(client.base_url.join("/health")).status_code == 200)
        assert_idle(client, service)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("ahead", "headers"),
    [
        (b"", {}),
        (b"\r\n", {}),
        (request_bytes("GET", "/health"), {}),
        (b"", {"Connection": "Upgrade", "Upgrade": "h2c"}),
    ],
    ids=["alone", "newline", "pipelined", "upgrade"],
)
def test_closed_write_side_counts_as_a_disconnect(stream: bool, ahead: bytes, headers: dict[str, str]) -> None:
    with searching(stream=stream, ahead=ahead, headers=headers) as (raw, _, _):
        raw.close_write_side()
        assert b"[DONE]" not in raw.read_all()


@pytest.mark.parametrize("stream", [True, False])
def test_search_of_a_client_that_crashes_is_cancelled(stream: bool) -> None:
    with searching(stream=stream) as (raw, _, _):
        raw.reset()


def test_client_that_sends_without_end_while_it_is_answered_is_cut_off() -> None:
    with searching(stream=False) as (raw, _, _):
        raw.send_until_closed(b"x" * 65536, pause_s=0)


def test_request_sent_ahead_is_answered_after_the_one_before() -> None:
    with toy_server() as (client, _), RawClient(client.base_url) as raw:
        raw.send(post_bytes(chat_body(seed=1)) + post_bytes(chat_body(seed=2), Connection="close"))
        assert raw.read_all().count(b"HTTP/1.1 200 OK") == 2


def test_client_that_disconnects_within_its_body_is_counted_as_gone() -> None:
    with toy_server() as (client, service):
        with RawClient(client.base_url) as raw:
            raw.send(HALF_REQUESTS["body"])
        wait_until(lambda: 'status="499"} 1.0' in client.get("/metrics").text)
        assert_idle(client, service)
