"""HEAD, OPTIONS and other methods, on every path; forms of addresses."""

from __future__ import annotations

import httpx
import pytest

from tests.support.raw_client import RawClient, request_bytes, status_of
from tests.support.toy_server import chat_body, error_of, toy_server

CHAT = "/v1/chat/completions"
GET_PATHS = (
    "/",
    "/health",
    "/check",
    "/metrics",
    "/v1/models",
    "/v1/models/best-of-4",
    "/trees/0",
    "/trees/0.json",
    "/openapi.json",
    "/nope",
)


@pytest.mark.parametrize("path", GET_PATHS)
def test_head_answers_as_get_without_a_body(toy: httpx.Client, path: str) -> None:
    get, head = toy.get(path), toy.head(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    if path not in ("/metrics", "/health"):  # their numbers change
        assert head.headers["content-length"] == get.headers["content-length"]


def test_head_shows_the_page_and_the_data_of_a_tree(toy: httpx.Client) -> None:
    tree = toy.post(CHAT, json=chat_body()).headers["x-reason-tree"]
    for path in (tree, f"{tree}.json"):
        assert toy.head(path).headers["content-length"] == str(len(toy.get(path).content))


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_head_of_a_path_for_posts_is_405(toy: httpx.Client, path: str) -> None:
    response = toy.head(path)
    assert (response.status_code, response.headers["allow"]) == (405, "OPTIONS, POST")
    assert response.content == b""


@pytest.mark.parametrize("path", [*GET_PATHS[:-1], CHAT, "/v1/completions"])
def test_options_and_unknown_methods_name_the_methods_of_the_path(toy: httpx.Client, path: str) -> None:
    methods = "OPTIONS, POST" if path in (CHAT, "/v1/completions") else "GET, HEAD, OPTIONS"
    options, unknown = toy.options(path), toy.request("BREW", path)
    assert (options.status_code, options.headers["allow"], options.content) == (204, methods, b"")
    assert (unknown.status_code, unknown.headers["allow"]) == (405, methods)
    assert path in error_of(unknown)["message"]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "BREW"])
@pytest.mark.parametrize("path", ["/nope", "/health/", "/v1/models/", "/trees/../x", "/trees/%00/x", "//elsewhere"])
def test_unknown_address_is_404_for_every_method(toy: httpx.Client, method: str, path: str) -> None:
    with RawClient(toy.base_url) as client:
        client.send(request_bytes(method, path, Connection="close"))
        reply = client.read_all()
    assert status_of(reply) == 404
    assert b"location:" not in reply.lower()
    assert b'"type":"not_found_error"' in reply


def test_key_is_needed_for_head_and_options_too() -> None:
    with toy_server(api_key="open sesame") as (client, _):
        for path in ("/v1/models", CHAT, "/nope"):
            assert (client.head(path).status_code, client.options(path).status_code) == (401, 401)
        assert client.head("/health").status_code == 200


def test_address_in_absolute_form_is_the_same_address(toy: httpx.Client) -> None:
    for target in ("http://toy/health", "HTTP://toy:80/health"):
        with RawClient(toy.base_url) as client:
            client.send(request_bytes("GET", target, Connection="close"))
            assert status_of(client.read_all()) == 200


def test_absolute_form_does_not_get_around_the_key() -> None:
    with toy_server(api_key="open sesame") as (client, _):
        for target in ("http://toy/v1/models", "http:///health/../v1/models", "/health/../v1/models"):
            with RawClient(client.base_url) as raw:
                raw.send(request_bytes("GET", target, Connection="close"))
                assert status_of(raw.read_all()) == 401
