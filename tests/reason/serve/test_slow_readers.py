"""Clients that do not read their answers: buffers stay small, their searches are cancelled, steady ones are served."""

from __future__ import annotations

import time

import pytest

from reason.serve import events, wire
from tests.support.raw_client import RawClient, post_bytes
from tests.support.toy_server import chat_body, toy_server, wait_until


@pytest.fixture
def long_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams send half a megabyte at a time, without end, while the engine is held."""
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.01)
    monkeypatch.setattr(wire, "KEEP_ALIVE", b": " + b"x" * (512 << 10) + b"\n\n")


@pytest.mark.usefixtures("long_stream")
def test_search_of_a_client_that_does_not_read_is_cancelled() -> None:
    with toy_server(send_timeout_s=0.5) as (client, service):
        service.writer.held = True
        with RawClient(client.base_url, receive_buffer=4096) as raw:
            raw.send(post_bytes(chat_body(stream=True)))
            wait_until(lambda: service.writer.under_way > 0)
            wait_until(lambda: service.writer.under_way == 0)
        wait_until(lambda: 'status="499"} 1.0' in client.get("/metrics").text)
        assert client.get("/check").json() == {"status": "sound"}


@pytest.mark.usefixtures("long_stream")
def test_client_that_reads_slowly_but_steadily_is_served() -> None:
    with toy_server(send_timeout_s=2) as (client, service):
        service.writer.held = True
        with RawClient(client.base_url, receive_buffer=65536) as raw:
            raw.send(post_bytes(chat_body(stream=True)))
            for _ in range(12):  # 3 s and more; 1 MiB in the time in which a quarter of it must be read
                left = 128 << 10
                while left > 0:
                    received = raw.socket.recv(left)
                    assert received, "the server closed the connection"
                    left -= len(received)
                time.sleep(0.25)
            assert service.writer.under_way > 0


def test_unread_answers_are_not_gathered() -> None:
    """Six megabytes of answers, of which the client reads nothing: the connection ends, and no other one notices."""
    with toy_server(send_timeout_s=0.5) as (client, _), RawClient(client.base_url, receive_buffer=4096) as raw:
        raw.send(b"GET /openapi.json HTTP/1.1\r\nHost: toy\r\n\r\n" * 600)
        assert client.get("/health").status_code == 200
        raw.send_until_closed(b"G", pause_s=0.05)
        assert len(raw.read_all()) < 2 << 20
