"""Web pages of other origins: none by default, those of `serve.cors_origins`, and errors that they can read."""

from __future__ import annotations

import httpx
import pytest

from tests.support.toy_server import chat_body, serve_settings, toy_server

CHAT, PAGE = "/v1/chat/completions", "https://app.example.org"
ALLOWED, CREDENTIALS = "access-control-allow-origin", "access-control-allow-credentials"


def preflight(client: httpx.Client, origin: str, path: str = CHAT) -> httpx.Response:
    wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}
    return client.options(path, headers={"Origin": origin, **wish})


def test_server_without_origins_sends_no_cors_headers(toy: httpx.Client) -> None:
    for response in (preflight(toy, PAGE), toy.post(CHAT, json=chat_body(), headers={"Origin": PAGE})):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_page_of_an_origin_may_ask_without_the_key_and_reads_errors_too() -> None:
    with toy_server(api_key="open sesame", cors_origins=[PAGE.upper(), "http://localhost:3000"]) as (client, service):
        question = preflight(client, PAGE)
        assert (question.status_code, question.headers[ALLOWED]) == (200, PAGE)
        assert "POST" in question.headers["access-control-allow-methods"]
        assert question.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        service.writer.broken = True
        given = {"Origin": PAGE}
        key = {"Authorization": "Bearer open sesame"}
        replies = {
            401: client.post(CHAT, json=chat_body(), headers=given),
            200: client.get("/v1/models", headers=given | key),
            400: client.post(CHAT, json={}, headers=given | key),
            404: client.get("/nope", headers=given | key),
            405: client.get(CHAT, headers=given | key),
            413: client.post(CHAT, content=b" " * (65 << 10), headers=given | key),
            500: client.post(CHAT, json=chat_body(), headers=given | key),
        }
        for status, reply in replies.items():
            assert (reply.status_code, reply.headers[ALLOWED]) == (status, PAGE)
            assert "x-request-id" in reply.headers["access-control-expose-headers"].lower()
            assert "Origin" in reply.headers["vary"]
        stream = client.post(CHAT, json=chat_body(stream=True), headers=given | key)
        assert (stream.headers[ALLOWED], stream.headers["content-type"][:17]) == (PAGE, "text/event-stream")
        for response in (question, *replies.values(), stream):
            assert CREDENTIALS not in response.headers


@pytest.mark.parametrize("origin", ["https://evil.example.org", "http://app.example.org", f"{PAGE}.evil.org", "null"])
def test_page_of_another_origin_may_not(origin: str) -> None:
    with toy_server(cors_origins=[PAGE]) as (client, _):
        assert preflight(client, origin).status_code == 400
        for response in (preflight(client, origin), client.get("/v1/models", headers={"Origin": origin})):
            assert ALLOWED not in response.headers


def test_all_origins_are_allowed_without_credentials() -> None:
    with toy_server(cors_origins=["*"]) as (client, _):
        given = {"Origin": "https://any.example.org", "Cookie": "a=b"}
        for response in (preflight(client, given["Origin"]), client.get("/health", headers=given)):
            assert response.headers[ALLOWED] == "*"
            assert CREDENTIALS not in response.headers


@pytest.mark.parametrize(
    "wrong",
    [
        *("*", PAGE, [], [3], [""], ["app.example.org"], ["ftp://app.example.org"], [f"{PAGE}/"], [f"{PAGE}/path"]),
        *(["*", PAGE], ["https://*.example.org"], ["https://me@example.org"], ["https://"], ["https://a:b"], ["null"]),
        *([f"{PAGE}\r\nX: 1"], [f"{PAGE}\n"], ["https://schlüssel.de"]),
    ],
    ids=str,
)
def test_wrong_origin_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^cors_origins must be "):
        serve_settings(cors_origins=wrong)
