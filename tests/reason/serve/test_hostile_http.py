"""Requests that are wrong as HTTP, or dangerous behind a proxy: refused in the format of all errors."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.raw_client import CHAT, RawClient, error_code, post_bytes, request_bytes, status_of
from tests.support.toy_server import chat_body, error_of, toy_server

BODY = json.dumps(chat_body()).encode()
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
CHUNKS = {"Content_Length": "", "Transfer_Encoding": "chunked"}

NOT_HTTP = {
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    "HTTP/0.9": (400, b"GET /health\r\n\r\n"),
    "no host": (400, b"GET /health HTTP/1.1\r\n\r\n"),
    "two hosts": (400, request_bytes("GET", "/health").replace(b"Host: toy", b"Host: toy\r\nHost: other")),
    "two lengths": (400, post_bytes(chat_body()).replace(b"Content-Length", b"Content-Length: 3\r\nContent-Length")),
    "length -1": (400, request_bytes("POST", CHAT, BODY, Content_Length="-1")),
    "length 1e30": (400, request_bytes("POST", CHAT, BODY, Content_Length="9" * 30)),
    "length and chunks": (400, request_bytes("POST", CHAT, CHUNKED, Transfer_Encoding="chunked")),
    "broken chunk": (400, request_bytes("POST", CHAT, b"zz\r\n", **CHUNKS)),
    "gzip as transfer": (501, request_bytes("POST", CHAT, BODY, Content_Length="", Transfer_Encoding="gzip")),
    "null in a header": (400, request_bytes("GET", "/health", X="a\0b")),
    "space in a name": (400, b"GET /health HTTP/1.1\r\nHost : toy\r\n\r\n"),
}


@pytest.mark.parametrize("name", NOT_HTTP)
def test_what_is_not_valid_http_is_refused_and_the_connection_closed(toy: httpx.Client, name: str) -> None:
    status, request = NOT_HTTP[name]
    with RawClient(toy.base_url) as raw:
        raw.send(request)
        reply = raw.read_all()
    assert (status_of(reply), error_code(reply)) == (status, "invalid_http")
    assert reply.count(b"HTTP/1.1 ") == 1
    assert toy.get("/health").status_code == 200


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("where", ["query", "header"])
def test_headers_above_32_kib_are_431(toy: httpx.Client, where: str, at_once: bool) -> None:
    path, value = ("/health?" + "q" * 40_000, "x") if where == "query" else ("/health", "x" * 40_000)
    request = request_bytes("GET", path, X=value)
    with RawClient(toy.base_url) as raw:
        if at_once:
            raw.send(request)
        else:
            raw.send(request[:33_000])  # the end of the headers never comes
        reply = raw.read_until(b"}}")
    assert status_of(reply) == 431
    assert toy.get("/health?" + "q" * 30_000).status_code == 200


def test_compressed_body_is_415(toy: httpx.Client) -> None:
    for encoding in ("gzip", "deflate", "br", "gzip, identity", ""):
        reply = toy.post(CHAT, content=BODY, headers={"content-type": "application/json", "content-encoding": encoding})
        assert (reply.status_code, error_of(reply)["code"]) == (415, "unsupported_encoding")
        assert reply.headers["accept-encoding"] == "identity"
    plain = {"content-type": "application/json", "content-encoding": "Identity"}
    assert toy.post(CHAT, content=BODY, headers=plain).status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "nonsense"], ids=str)
def test_body_that_is_not_declared_as_json_is_400(toy: httpx.Client, content_type: str) -> None:
    """A web page of any origin can send such a body; JSON it can send only if `serve.cors_origins` has it."""
    with RawClient(toy.base_url) as raw:
        raw.send(request_bytes("POST", CHAT, BODY, Content_Type=content_type, Connection="close"))
        reply = raw.read_all()
    assert status_of(reply) == 400
    assert b"application/json" in reply


def test_endless_chunks_are_413_at_the_limit() -> None:
    with toy_server(body_kib=64) as (client, service), RawClient(client.base_url) as raw:
        raw.send(request_bytes("POST", CHAT, **CHUNKS))
        for _ in range(80):
            raw.send(b"400\r\n" + b" " * 1024 + b"\r\n")
        assert status_of(raw.read_until(b"}}")) == 413
        assert service.admission.running == 0


def test_body_that_is_too_large_is_refused_before_it_is_sent(toy: httpx.Client) -> None:
    with RawClient(toy.base_url) as raw:
        raw.send(request_bytes("POST", CHAT, Expect="100-continue", Content_Length="9999999"))
        assert status_of(raw.read_until(b"}}")) == 413
    with RawClient(toy.base_url) as raw:
        raw.send(request_bytes("POST", CHAT, Expect="100-continue", Connection="close", Content_Length=str(len(BODY))))
        assert status_of(raw.read_until(b"\r\n\r\n")) == 100
        raw.send(BODY)
        assert status_of(raw.read_all()) == 200


def test_http_1_0_is_answered_and_closed(toy: httpx.Client) -> None:
    for header in (b"", b"Connection: keep-alive\r\n"):
        with RawClient(toy.base_url) as raw:
            raw.send(b"GET /health HTTP/1.0\r\n" + header + b"\r\n")
            reply = raw.read_all()
        assert status_of(reply) == 200
        assert b"connection: close" in reply.lower()


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_its_answer(toy: httpx.Client, stream: bool) -> None:
    body = json.dumps(chat_body(stream=stream)).encode()
    with RawClient(toy.base_url) as raw:
        raw.send(request_bytes("POST", CHAT, body).replace(b"HTTP/1.1", b"HTTP/1.0"))
        reply = raw.read_all()
    assert status_of(reply) == 200
    assert reply.endswith(b"data: [DONE]\n\n" if stream else b"}")


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_upgrade_is_ignored(toy: httpx.Client, upgrade: str) -> None:
    more = {"Upgrade": upgrade, "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec_WebSocket_Version": "13"}
    with toy_server(api_key="open sesame") as (client, _), RawClient(client.base_url) as raw:
        raw.send(request_bytes("GET", "/v1/models", Connection="Upgrade", **more))
        assert status_of(raw.read_until(b"}}")) == 401


@pytest.mark.parametrize("host", ["[", "a b", "toy:99999999", "", "é", "user@evil", "[::1", "<script>"])
def test_no_host_header_breaks_an_error(toy: httpx.Client, host: str) -> None:
    with RawClient(toy.base_url) as raw:
        raw.send(f"GET /nope?%ff HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        reply = raw.read_all()
    assert status_of(reply) in (400, 404)
    assert b"script" not in reply


@pytest.mark.parametrize(
    "path",
    ["/trees/../../etc/passwd", "/trees/%2e%2e%2f%2e%2e%2fetc%2fpasswd.json", "/trees/%00", "/trees/..%5c..%5cx.json"],
)
def test_no_path_leaves_the_folder_of_the_trees(toy: httpx.Client, path: str) -> None:
    with RawClient(toy.base_url) as raw:
        raw.send(request_bytes("GET", path, Connection="close"))
        assert status_of(raw.read_all()) == 404


@pytest.mark.parametrize(
    "key", ["Bearer schlüssel", "Bearer \xff\xfe", "\x80", "Bearer", "Bearer ", "Basic b3Blbg==", "x" * 30_000]
)
def test_wrong_keys_of_any_characters_are_401(key: str) -> None:
    with toy_server(api_key="open sesame") as (client, _), RawClient(client.base_url) as raw:
        raw.send(request_bytes("GET", "/v1/models", Authorization=key, Connection="close"))
        reply = raw.read_all()
        assert (status_of(reply), error_code(reply)) == (401, "invalid_api_key")


def test_many_wrong_keys_do_not_hold_up_the_right_one() -> None:
    right = {"authorization": "Bearer open sesame"}
    with toy_server(api_key="open sesame") as (client, service), ThreadPoolExecutor(8) as pool:
        wrong = [
            pool.submit(client.post, CHAT, json=chat_body(), headers={"authorization": f"Bearer {i}"})
            for i in range(300)
        ]
        assert client.post(CHAT, json=chat_body(), headers=right).status_code == 200
        assert {reply.result().status_code for reply in wrong} == {401}
        assert (service.admission.running, service.admission.waiting) == (0, 0)
