"""Clients of the serving bench, with a server that answers every request with three tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rich.console import Console

from reason.commands.bench.serving import bench_serving, make_parser


@contextmanager
def recording_server() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yields the address of a server, and the list of paths and bodies that it adds its requests to."""
    requests: list[tuple[str, Any]] = []

    class Recorder(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, json.loads(body)))
            reply = json.dumps({"usage": {"completion_tokens": 3}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *values: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def bench(*arguments: str) -> dict[str, Any]:
    return bench_serving(make_parser().parse_args(arguments), Console(quiet=True))


def test_no_client_count_and_no_turn_repeats_a_question_or_a_seed() -> None:
    sizes = ["--presets", "single", "--clients", "1,2", "--requests", "20", "--repeats", "2"]
    with recording_server() as (url, requests):
        cases = bench("--url", url, *sizes)["cases"]
    assert [turn["requests"] for case in cases for turn in case["turns"]] == [20] * 4
    bodies = [body for _, body in requests if body["seed"] < 10**6]  # the others warm the server up
    assert len(bodies) == 2 * 2 * 20
    assert len({body["seed"] for body in bodies}) == len(bodies)
    assert len({body["messages"][0]["content"] for body in bodies}) == len(bodies)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/team", "/team/v1/"])
def test_path_of_an_address_is_kept(path: str) -> None:
    with recording_server() as (url, requests):
        bench("--url", url + path, "--presets", "single", "--clients", "1", "--requests", "1", "--repeats", "1")
    folder = path.rstrip("/").removesuffix("/v1")
    assert {asked_path for asked_path, _ in requests} == {f"{folder}/v1/chat/completions"}


def test_https_address_is_not_asked_in_the_clear() -> None:
    with recording_server() as (url, requests), pytest.raises(OSError, match="SSL"):
        bench("--url", url.replace("http:", "https:"), "--clients", "1", "--requests", "1", "--repeats", "1")
    assert requests == []


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "host"])
def test_address_without_a_known_scheme_and_a_host_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=f"--url must be like http://HOST:PORT or https://HOST/PATH, got {url}"):
        bench("--url", url)
