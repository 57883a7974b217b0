"""Every reply ends in time and within its size, and what is no reply is an error of its server."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from reason.engines.http.blocking import fetch_blocking
from reason.engines.http.client import HttpSession, JsonHttpClient
from reason.engines.http.errors import ReplyBrokenOff, ReplyTimeout, ResponseLost, ServerUnreachable
from reason.engines.http.reply import ReplyLimits
from tests.support.raw_http import HEAD, STREAM_HEAD, Pieces, RawServer, drip, with_length

LIMITS = ReplyLimits(total_s=1.0, idle_s=0.3, max_bytes=100_000)
PATIENT = ReplyLimits(total_s=300.0, idle_s=300.0, max_bytes=2**26)
HEADER_DRIP: Pieces = [b"X: 1\r\n", 0.1] * 99
KEEP_ALIVE: Pieces = [0.1, b": alive\n\n"] * 9
EVENT_DRIP: Pieces = [b"data: 1\n\n", 0.05] * 99
Serve = Callable[[Pieces], RawServer]


def fetch(server: RawServer, limits: ReplyLimits = LIMITS) -> object:
    """Returns the JSON of a reply."""
    session = HttpSession(limits)
    try:
        (content,) = session.probe_all([JsonHttpClient(server.url, session.http).request_json("POST", "/x", {})])
    finally:
        session.close()
    return content


def read_stream(server: RawServer, limits: ReplyLimits = LIMITS) -> list[object]:
    """Returns the events of a stream."""
    events: list[object] = []

    def add_event(event: object) -> bool:
        events.append(event)
        return False

    session = HttpSession(limits)
    try:
        read = session.http.read_events(server.url, "/x", {}, add_event, count_tokens=lambda: len(events))
        session.probe_all([read])
    finally:
        session.close()
    return events


class TestTime:
    @pytest.mark.parametrize("pieces", [drip(b" " * 999), [0.1, *drip(b"1" * 999)], [HEAD, *HEADER_DRIP]])
    def test_drip_of_body_or_headers_ends_at_the_total(self, serve: Serve, pieces: Pieces) -> None:
        with pytest.raises(ReplyTimeout, match=r"/x has not completed its reply within 1 s$"):
            fetch(serve(pieces))

    def test_silence_counts_once_the_reply_has_begun(self, serve: Serve) -> None:
        assert fetch(serve([0.5, *with_length(b"1")])) == 1
        with pytest.raises(ReplyTimeout, match=r"sent nothing for 0\.3 s in the middle"):
            fetch(serve([*with_length(b"[1]")[:1], b"[", 0.6, b"1]"]))

    def test_silence_of_a_stream_counts_from_its_first_event(self, serve: Serve) -> None:
        keep_alive: Pieces = [STREAM_HEAD, 0.5, b": alive\n\n", b'data: {"a": 1}\n\ndata: [DONE]\n\n']
        assert read_stream(serve(keep_alive)) == [{"a": 1}]
        with pytest.raises(ReplyTimeout, match="sent nothing"):
            read_stream(serve([STREAM_HEAD, b"data: 1\n\n", *KEEP_ALIVE]))

    def test_endless_stream_ends_at_the_total(self, serve: Serve) -> None:
        with pytest.raises(ReplyTimeout, match="within 1 s"):
            read_stream(serve([STREAM_HEAD, *EVENT_DRIP]))

    def test_blocking_request_has_a_total(self, serve: Serve) -> None:
        server = serve(drip(b" " * 999))
        with pytest.raises(ReplyTimeout, match=f"{server.url}/models has not completed its reply within 0.5 s"):
            fetch_blocking("GET", server.url, "/models", total_s=0.5)
        server.close()
        with pytest.raises(ServerUnreachable, match=f"^{server.url} does not answer"):
            fetch_blocking("GET", server.url, "/models", total_s=0.5)


class TestSize:
    @pytest.mark.parametrize(
        "pieces",
        [
            with_length(b" " * 100_001),
            [HEAD + b"\r\n", b" " * 100_001],
            with_length(gzip.compress(bytes(10**8)), b"Content-Encoding: gzip"),
            with_length(zlib.compress(bytes(10**8)), b"Content-Encoding: deflate"),
        ],
    )
    def test_large_reply_is_lost(self, serve: Serve, pieces: Pieces) -> None:
        with pytest.raises(ResponseLost, match=r"sent more than 0\.0953674 MB"):
            fetch(serve(pieces))

    def test_large_stream_is_lost(self, serve: Serve) -> None:
        with pytest.raises(ResponseLost, match="sent more than"):
            read_stream(serve([STREAM_HEAD, *[b": alive\n\n" * 1000] * 99]))
        with pytest.raises(ResponseLost, match="sent more than"):
            read_stream(serve([STREAM_HEAD, *[b"data: " + b"1" * 9999] * 99]))

    def test_compressed_reply_is_read(self, serve: Serve) -> None:
        body = json.dumps({"text": "é" * 9999}).encode()
        assert fetch(serve(with_length(gzip.compress(body), b"Content-Encoding: gzip"))) == json.loads(body)


class TestContent:
    @pytest.mark.parametrize(
        ("pieces", "what"),
        [
            (with_length(b""), "sent an empty reply"),
            (with_length(b"<html>"), "not JSON: '<html>'"),
            (with_length(b"\xff\xfe\xfd"), "not JSON"),
            (with_length(b"[" * 9999), "not JSON"),
            (with_length(b"[" * 9999 + b"]" * 9999), "not JSON"),
            (with_length(b"[" + b"[]," * 20_000 + b"1]"), "not JSON"),
            (with_length(b"9" * 9999), "not JSON"),
            (with_length(b"not gzip", b"Content-Encoding: gzip"), "cannot be decompressed"),
            (with_length(gzip.compress(b"1")[:-4], b"Content-Encoding: gzip"), "broke off in the middle"),
            (with_length(gzip.compress(b"1") + b"1", b"Content-Encoding: gzip"), "more than the compressed reply"),
            (with_length(b"1", b"Content-Encoding: br"), "an encoding that was not requested"),
            (
                [b"HTTP/1.1 307 X\r\nLocation: http://b/\r\nContent-Length: 0\r\n\r\n"],
                "says 307: a redirect to http://b/",
            ),
            ([b"HTTP/1.1 302 X\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n"], r"302|broke off"),
            ([b"HTTP/1.1 204 X\r\n\r\n"], "says 204: no reply to a request"),
            ([b"HTTP/1.1 206 X\r\nContent-Length: 1\r\n\r\n1"], "says 206: no reply to a request"),
            ([b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\n\x1b\nA"], "says 500: A$"),
            ([b"SSH-2.0\r\n\r\n"], "broke off"),
        ],
    )
    def test_what_is_no_reply_is_lost(self, serve: Serve, pieces: Pieces, what: str) -> None:
        with pytest.raises(ResponseLost, match=what) as caught:
            fetch(serve(pieces))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 600

    def test_event_that_is_no_json_is_lost(self, serve: Serve) -> None:
        with pytest.raises(ResponseLost, match=r"an event that is not JSON: '\{'"):
            read_stream(serve([STREAM_HEAD, b"data: {\n\n"]))

    def test_stream_without_its_end_broke_off(self, serve: Serve) -> None:
        with pytest.raises(ReplyBrokenOff, match="broke off"):
            read_stream(serve([STREAM_HEAD, b"data: 1\n\n"]))

    def test_events_are_separated_by_line_feeds_only(self, serve: Serve) -> None:
        pieces: Pieces = [STREAM_HEAD, 'data: "a\u2028b"\r\n\r'.encode(), b"\ndata:2\ndata: [DONE]\n"]
        assert read_stream(serve(pieces)) == ["a\u2028b", 2]

    def test_what_follows_a_reply_is_not_the_next_reply(self, serve: Serve) -> None:
        server = serve([*with_length(b"1"), *with_length(b'"stale"')])
        session = HttpSession(LIMITS)
        client = JsonHttpClient(server.url, session.http)
        for _ in range(3):
            assert session.probe_all([client.request_json("POST", "/x", {})]) == [1]
        session.close()


class TestClose:
    @pytest.mark.parametrize(
        "pieces", [drip(b" " * 999), [60.0], with_length(gzip.compress(bytes(10**9)), b"Content-Encoding: gzip")]
    )
    def test_close_returns_at_once_whatever_is_under_way(self, serve: Serve, pieces: Pieces) -> None:
        server, session, ends = serve(pieces), HttpSession(PATIENT), []

        async def wait_for_reply() -> None:
            client = JsonHttpClient(server.url, session.http)
            work: Any = [client.request_json("POST", "/x", {}) for _ in range(8)]
            try:
                await session.run_all(work)
            except (ResponseLost, asyncio.CancelledError) as error:
                ends.append(error)

        thread = threading.Thread(target=lambda: asyncio.run(wait_for_reply()))
        thread.start()
        while server.num_requests < 8:
            time.sleep(0.01)
        began = time.monotonic()
        session.close()
        assert time.monotonic() - began < 5
        thread.join(20)
        assert len(ends) == 1

    def test_close_does_not_wait_for_background_work(self) -> None:
        session = HttpSession(PATIENT)

        async def begin() -> None:
            session.start_background(asyncio.sleep(600))

        session.probe_all([begin()])
        began = time.monotonic()
        session.close()
        assert time.monotonic() - began < 5
