"""Measures the HTTP endpoint: clients that each send a request as soon as the one before is answered."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPSConnection
from statistics import median
from typing import Any
from urllib.parse import SplitResult, urlsplit

from reason.bench.report import join_report
from reason.runs.tables import ResultTable

TIMEOUT_S = 600
PATH = "/v1/chat/completions"
NUM_QUESTIONS = 17 * 8 * 18
"""Different questions; after so many seeds they come again."""
_STRIDE = 1009  # has no factor in common with their number, so that neighbours differ in all their numbers


@dataclass(frozen=True)
class ServedLoad:
    """What one server answered to some clients. Latencies are in seconds.

    server    its settings, or its address
    requests  answered requests; all have a question and a seed of their own
    tokens    those that it wrote
    """

    server: str
    preset: str
    clients: int
    requests: int
    tokens: int
    seconds: float
    latencies: list[float]

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@contextmanager
def start_server(*settings: str) -> Iterator[str]:
    """Starts `reason serve` on a free port, yields its address once it serves, and stops it at the end.

    Raises: ValueError where it does not start.
    """
    command = [sys.executable, "-m", "reason", "serve", "serve.port=0", *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if match := re.search(r"base url (\S+)/v1", line):
                break
        else:
            raise ValueError(f"{shlex.join(command)} did not start: see above")
        # its log must be read, or the server waits for a reader
        threading.Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
        yield match[1]
    finally:
        process.terminate()
        process.wait()


def parse_address(url: str) -> SplitResult:
    """Returns the parts of a server's address, with or without `/v1`. Raises: ValueError for another kind of text."""
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError(f"--url must be like http://HOST:PORT or https://HOST/PATH, got {url}")
    return address._replace(path=address.path.rstrip("/").removesuffix("/v1"))


def measure_load(
    server: str, url: str, preset: str, *, clients: int, requests: int, seed: int, key: str | None
) -> ServedLoad:
    """Sends so many requests from so many clients, each over one connection. Raises: ValueError for an error."""
    address = parse_address(url)
    open_connection = HTTPSConnection if address.scheme == "https" else HTTPConnection
    bodies = deque(_write_body(preset, seed + number) for number in range(requests))

    def answer_all(_: int) -> list[tuple[float, int]]:
        answers: list[tuple[float, int]] = []
        connection = open_connection(address.netloc, timeout=TIMEOUT_S)
        while bodies:
            try:
                body = bodies.popleft()
            except IndexError:  # another client has taken the last one
                break
            begin = time.perf_counter()
            tokens = _ask(connection, address.path + PATH, body, key)
            answers.append((time.perf_counter() - begin, tokens))
        connection.close()
        return answers

    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = [answer for some in pool.map(answer_all, range(clients)) for answer in some]
    seconds = time.perf_counter() - begin
    latencies, tokens = [latency for latency, _ in answers], sum(tokens for _, tokens in answers)
    return ServedLoad(server, preset, clients, len(answers), tokens, seconds, sorted(latencies))


def _write_body(preset: str, seed: int) -> str:
    number = seed * _STRIDE % NUM_QUESTIONS
    first, factor, step = 2 + number // 144, 2 + number // 18 % 8, 1 + number % 18
    question = f"x0 = {first}. Each next term is {factor} times the one before plus {step}, modulo 19. Find x3."
    return json.dumps({"model": preset, "messages": [{"role": "user", "content": question}], "seed": seed})


def _ask(connection: HTTPConnection, path: str, body: str, key: str | None) -> int:
    """Returns the number of tokens that a request took."""
    authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
    connection.request("POST", path, body, {"Content-Type": "application/json", **authorization})
    reply = connection.getresponse()
    text = reply.read().decode()
    if reply.status != 200:
        raise ValueError(f"the server answered {reply.status}: {text[:500]}")
    return int(json.loads(text)["usage"]["completion_tokens"])


def summarise_loads(loads: Sequence[ServedLoad]) -> list[dict[str, Any]]:
    """Returns medians over the turns of each server, preset and number of clients.

    `ratios` are requests per second over those of the first server in the same turn.
    """
    turns: dict[tuple[str, int, str], list[ServedLoad]] = {}
    for load in loads:
        turns.setdefault((load.preset, load.clients, load.server), []).append(load)
    first = loads[0].server
    return [
        {
            "server": server,
            "preset": preset,
            "clients": clients,
            "requests_per_s": median(load.requests_per_s for load in served),
            "tokens_per_s": median(load.tokens_per_s for load in served),
            "p50_s": median(find_percentiles(load.latencies, [50])[0] for load in served),
            "p99_s": median(find_percentiles(load.latencies, [99])[0] for load in served),
            "ratios": [
                load.requests_per_s / other.requests_per_s
                for load, other in zip(served, turns[preset, clients, first], strict=True)
            ],
            "turns": [asdict(load) for load in served],
        }
        for (preset, clients, server), served in sorted(turns.items(), key=lambda item: item[0][:2])
    ]


def find_percentiles(values: Sequence[float], percents: Sequence[int]) -> list[float]:
    """Returns for each percent the smallest value that so many of the values do not exceed.

    >>> find_percentiles([float(i) for i in range(1, 101)], (50, 90, 99, 100))
    [50.0, 90.0, 99.0, 100.0]
    """
    ordered = sorted(values)
    return [ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in percents]


def make_table(cases: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Returns `summarise_loads` as a table."""
    header = ("preset", "clients", "server", "requests/s", "tokens/s", "p50, s", "p99, s", "requests/s over the first")
    rows = [
        [
            case["preset"],
            str(case["clients"]),
            case["server"] or "defaults",
            f"{case['requests_per_s']:.1f}",
            f"{case['tokens_per_s']:,.0f}",
            f"{case['p50_s']:.3f}",
            f"{case['p99_s']:.3f}",
            f"{median(case['ratios']):.2f} ({min(case['ratios']):.2f} to {max(case['ratios']):.2f})",
        ]
        for case in cases
    ]
    return ResultTable("Requests of clients that wait for each answer: medians", header, rows)


def format_report(result: Mapping[str, Any], command: str) -> str:
    """Returns the report in Markdown; it ends with the figures as JSON."""
    parts = [
        "Each client sends its next request, over the same connection, as soon as the one before is answered; every "
        f"request has a question and a seed of its own. Servers take turns, {result['repeats']} of each, and begin "
        "anew in each of them; some requests before are not counted. Tokens are those of all solutions of a search.",
        make_table(result["cases"]).markdown_section(),
    ]
    return join_report("The server and its clients", command, parts, machine=result["machine"], figures=result)
