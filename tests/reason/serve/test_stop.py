"""The server stops within `serve.grace` seconds and a moment, whatever its clients are doing, and tells them."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

import pytest

from tests.support.raw_client import RawClient, error_code, post_bytes, request_bytes, status_of
from tests.support.toy_server import chat_body, toy_server, wait_until


def test_stop_ends_running_requests_with_an_error_after_grace(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        with toy_server(grace=1, concurrency=2) as (client, service):
            service.writer.held = True
            bodies = [chat_body(), chat_body(stream=True), chat_body(), chat_body(stream=True)]  # two search, two wait
            raws = [stack.enter_context(RawClient(client.base_url)) for _ in bodies]
            for raw, body in zip(raws, bodies, strict=True):
                raw.send(post_bytes(body))
            wait_until(lambda: (service.admission.running, service.admission.waiting) == (2, 2))
            began = time.monotonic()
        assert time.monotonic() - began < 30
        replies = [raw.read_all() for raw in raws]
    assert (service.admission.running, service.admission.waiting, service.writer.under_way) == (0, 0, 0)
    for reply in replies:
        if status_of(reply) == 503:
            assert error_code(reply) == "stopping"
        else:
            assert b'"code":"stopping"' in reply
            assert b"[DONE]" not in reply
            assert reply.endswith(b"0\r\n\r\n")  # a complete stream, whose last event is the error
    assert [status_of(replies[0]), status_of(replies[2])] == [503, 503]
    assert not [record for record in caplog.records if record.exc_info]


def test_stop_lets_running_requests_end() -> None:
    with ExitStack() as stack:
        with toy_server(grace=30) as (client, service):
            service.writer.held = True
            raws = [stack.enter_context(RawClient(client.base_url)) for _ in range(2)]
            for raw, stream in zip(raws, (False, True), strict=True):
                raw.send(post_bytes(chat_body(stream=stream)))
            wait_until(lambda: service.admission.running == 2)
            service.writer.held = False
        replies = [raw.read_all() for raw in raws]
    assert [status_of(reply) for reply in replies] == [200, 200]
    assert b"[DONE]" in replies[1]


def test_stop_does_not_wait_for_idle_slow_and_deaf_clients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with ExitStack() as stack:
        with toy_server(grace=1) as (client, _):
            idle, slow, deaf, silent = (stack.enter_context(RawClient(client.base_url)) for _ in range(4))
            idle.send(request_bytes("GET", "/health"))
            idle.read_until(b"}")
            slow.send(post_bytes(chat_body())[:-5])
            deaf.send(b"GET /openapi.json HTTP/1.1\r\nHost: toy\r\n\r\n" * 1000)
            assert client.get("/health").status_code == 200
            began = time.monotonic()
        assert time.monotonic() - began < 30
        assert silent.read_all() == b""
