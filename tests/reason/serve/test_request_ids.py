"""Every reply has an `X-Request-Id`, and so has every log line of its request; no id can break a line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from io import StringIO
from typing import Any

import httpx
import pytest
from pythonjsonlogger.json import JsonFormatter

from reason.serve.request_id import RequestIdFilter
from tests.support.raw_client import RawClient, request_bytes
from tests.support.toy_server import ToySearchService, chat_body, error_of, toy_server, wait_until

CHAT, HEADER = "/v1/chat/completions", "x-request-id"


@pytest.fixture
def log_lines() -> Iterator[Any]:
    """Collects what the server logs, as scripts/serve.py writes it; a function returns the lines so far."""
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("%(levelname)s %(name)s %(message)s"))
    handler.addFilter(RequestIdFilter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.removeHandler(handler)
    root.setLevel(level)


def test_every_reply_has_an_id_of_its_own(toy: httpx.Client) -> None:
    replies = [
        *(toy.get(path) for path in ("/health", "/metrics", "/nope", CHAT)),
        *(toy.options("/health"), toy.head("/health"), toy.post(CHAT, json={}), toy.post(CHAT, json=chat_body())),
        *(toy.post(CHAT, json=chat_body(stream=True)), toy.post(CHAT, content=b" " * (65 << 10))),
    ]
    ids = [reply.headers[HEADER] for reply in replies]
    assert len(set(ids)) == len(ids)
    assert all(len(each) == 32 for each in ids)


def test_id_of_the_client_is_used(toy: httpx.Client) -> None:
    for given in ("job-7/3:a", "!" * 128):
        for body in (chat_body(), chat_body(stream=True), {}):
            assert toy.post(CHAT, json=body, headers={HEADER: given}).headers.get_list(HEADER) == [given]


@pytest.mark.parametrize("given", ["", "two words", "a" * 129, "schlüssel", "tab\there", "\x7f"])
def test_id_that_is_not_short_printable_ascii_is_replaced(toy: httpx.Client, given: str) -> None:
    reply = toy.get("/health", headers=[(HEADER.encode(), given.encode("latin-1"))])
    if reply.status_code == 200:
        assert reply.headers[HEADER] != given
        assert len(reply.headers[HEADER]) == 32
    else:  # control characters are no header at all
        assert error_of(reply)["code"] == "invalid_http"


@pytest.mark.parametrize("break_", ["\n", "\r", "\r\n ", "\0", "\u2028"])
def test_line_breaks_in_an_id_reach_no_header_and_no_log(toy: httpx.Client, break_: str, log_lines: Any) -> None:
    with RawClient(toy.base_url) as raw:
        request = request_bytes("POST", CHAT, b"{}", Connection="close")
        given = f"a{break_}Forged: yes".encode()
        raw.send(request.replace(b"\r\n\r\n", b"\r\nX-Request-Id: " + given + b"\r\n\r\n"))
        reply = raw.read_all()
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"forged" not in reply.lower()
    assert all("Forged" not in line.get("request_id", "") for line in log_lines())


def test_log_lines_of_a_search_have_its_id(toy: httpx.Client, log_lines: Any) -> None:
    for stream in (False, True):
        toy.post(CHAT, json=chat_body(stream=stream), headers={HEADER: f"job-{stream}"})
    done = [line["request_id"] for line in log_lines() if line["message"] == "search done"]
    assert done == ["job-False", "job-True"]


def test_log_lines_of_two_requests_on_one_connection_have_their_ids(toy: httpx.Client, log_lines: Any) -> None:
    with RawClient(toy.base_url) as raw:
        body = json.dumps(chat_body()).encode()
        raw.send(request_bytes("POST", CHAT, body, X_Request_Id="first"))
        raw.send(request_bytes("POST", CHAT, body, X_Request_Id="second", Connection="close"))
        raw.read_all()
    assert [line["request_id"] for line in log_lines() if line["message"] == "search done"] == ["first", "second"]


@pytest.mark.parametrize("stream", [True, False])
def test_failed_search_has_its_id_in_the_error_and_beside_the_traceback(
    own_toy: tuple[httpx.Client, ToySearchService], stream: bool, log_lines: Any
) -> None:
    client, service = own_toy
    service.writer.broken = True
    reply = client.post(CHAT, json=chat_body(stream=stream), headers={HEADER: "job-9"})
    assert "request_id job-9" in reply.text
    errors = [line for line in log_lines() if line["levelname"] == "ERROR"]
    assert {line.get("request_id") for line in errors} == {"job-9"}
    assert any("the toy broke" in line["exc_info"] for line in errors)


def test_failure_of_the_server_itself_has_its_id_too(monkeypatch: pytest.MonkeyPatch, log_lines: Any) -> None:
    def fail() -> bytes:
        raise RuntimeError("no metrics today")

    with toy_server() as (client, service):
        monkeypatch.setattr(service.metrics, "format_metrics", fail)
        reply = client.get("/metrics", headers={HEADER: "job-10"})
        assert (reply.status_code, reply.headers[HEADER]) == (500, "job-10")
        assert "request_id job-10" in error_of(reply)["message"]
        wait_until(lambda: any("no metrics today" in line.get("exc_info", "") for line in log_lines()))
    errors = [line for line in log_lines() if "exc_info" in line]
    assert {line["request_id"] for line in errors} == {"job-10"}
