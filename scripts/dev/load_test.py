"""Load a server with many clients, some of which disconnect or send invalid bodies, and check that nothing is lost.

python scripts/dev/load_test.py --seconds 60 --clients 64        starts scripts/serve.py on a free port
python scripts/dev/load_test.py --url http://HOST:PORT           loads a running server without other clients
python scripts/dev/load_test.py --out FILE.md                    writes a report

Every request must end as its kind should, and afterwards the server must be idle, `/check` must succeed and the memory
must not have grown; else the exit code is 1. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import httpx

from reason.bench.report import join_report
from reason.bench.serving import find_percentiles, start_server
from reason.runs.tables import format_markdown

MODEL = "best-of-4"
REQUEST_KINDS = {"complete": 5, "stream": 3, "disconnect": 2, "invalid": 2}
"""Relative frequency of each kind of request."""

INVALID_BODIES = [b"", b"{", b"[]", b"\xff\xfe", b'{"model": 3}', b'{"messages": [], "n": -1}']
MAX_GROWTH = 1.1  # of the memory, from the first half of the test to its end
PERCENTS = (50, 90, 99, 100)
"""Of latencies; the last is the maximum."""

TIMEOUT_S = 300.0
IDLE_S = 60.0


class Summary(TypedDict):
    """The JSON line."""

    clients: int
    seconds: float
    requests: int
    answered: int
    memory_mib: list[float]
    problems: list[str]


@dataclass
class RequestTally:
    """Outcomes of requests: `ended` counts (kind, outcome), `seconds` holds the latencies of answered ones by kind."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in REQUEST_KINDS})
    lost: list[str] = field(default_factory=list)
    sent: int = 0


async def load_server(url: str, clients: int, seconds: float, seed: int) -> tuple[RequestTally, list[float]]:
    """Returns all outcomes, and ten readings of the server's memory in MiB from before the first request on."""
    tally, memory = RequestTally(), []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as http:
        memory.append(await memory_mib(http))
        end = time.monotonic() + seconds
        users = [
            asyncio.create_task(run_client(http, random.Random(f"{seed}:{i}"), end, tally)) for i in range(clients)
        ]
        for _ in range(8):
            await asyncio.sleep(seconds / 8)
            memory.append(await memory_mib(http))
        await asyncio.gather(*users)
        memory.append(await memory_mib(http))
    return tally, memory


async def run_client(http: httpx.AsyncClient, rng: random.Random, end: float, tally: RequestTally) -> None:
    """Sends one request after the other until `end`. *Mutates* the tally."""
    while time.monotonic() < end:
        (kind,) = rng.choices(list(REQUEST_KINDS), list(REQUEST_KINDS.values()))
        tally.sent += 1
        began = time.monotonic()
        try:
            outcome, pause = await send_request(http, kind, rng)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            tally.lost.append(f"{kind}: {type(error).__name__}: {error}")
            continue
        tally.ended[kind, outcome] += 1
        if outcome in ("answered", "refused"):
            tally.seconds[kind].append(time.monotonic() - began)
        elif outcome not in ("disconnected", "answered 429"):
            tally.lost.append(f"{kind}: {outcome}")
        await asyncio.sleep(pause)


async def send_request(http: httpx.AsyncClient, kind: str, rng: random.Random) -> tuple[str, float]:
    """Returns the outcome of one request, and the seconds to wait before the next."""
    path = "/v1/chat/completions"
    if kind == "invalid":
        response = await http.post(
            path, content=rng.choice(INVALID_BODIES), headers={"content-type": "application/json"}
        )
        ok = response.status_code == 400 and "message" in response.json()["error"]
        return ("refused" if ok else f"status {response.status_code}"), 0.1
    numbers = [rng.randrange(2, 9) for _ in range(3)]
    question = "x0 = {}. Each next term is {} times the one before plus {}, modulo 19. Find x3.".format(*numbers)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "seed": rng.randrange(1 << 30),
        "stream": kind == "stream" or (kind == "disconnect" and rng.random() < 0.5),
        "max_tokens": 120,
    }
    if kind == "disconnect":
        try:
            async with asyncio.timeout(rng.uniform(0.05, 3.0)):
                await http.post(path, json=body)
        except TimeoutError:
            return "disconnected", 0.0
        return "disconnected", 0.0  # it was answered before that
    response = await http.post(path, json=body)
    if response.status_code == 429:
        return "answered 429", float(response.headers["retry-after"])
    if response.status_code != 200:
        return f"status {response.status_code}: {response.text[:200]}", 0.0
    if kind == "stream":
        return ("answered" if response.text.endswith("data: [DONE]\n\n") else "a stream without an end"), 0.0
    return ("answered" if response.json()["choices"][0]["message"]["content"] else "an empty answer"), 0.0


async def read_metric(http: httpx.AsyncClient, name: str) -> float:
    """Returns one number of `/metrics`."""
    for line in (await http.get("/metrics")).text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise KeyError(name)


async def memory_mib(http: httpx.AsyncClient) -> float:
    return await read_metric(http, "process_resident_memory_bytes") / 2**20


async def find_leaks(url: str) -> list[str]:
    """Returns what still runs a minute after the last client, or the error of `/check`; empty if there is none."""
    names = ("reason_searches_running", "reason_requests_waiting", "reason_engine_branches_running")
    async with httpx.AsyncClient(base_url=url, timeout=IDLE_S) as http:
        end = time.monotonic() + IDLE_S
        while time.monotonic() < end:
            busy = [f"{name} is {value:.0f}" for name in names if (value := await read_metric(http, name))]
            if not busy:
                check = await http.get("/check")
                return [] if check.status_code == 200 else [f"/check: {check.text}"]
            await asyncio.sleep(0.2)
    return busy


def outcome_table(tally: RequestTally) -> str:
    """Returns outcomes and latencies by kind, as Markdown."""
    rows = []
    for kind in REQUEST_KINDS:
        ends = ", ".join(f"{count} {outcome}" for (of, outcome), count in sorted(tally.ended.items()) if of == kind)
        seconds = tally.seconds[kind]
        times = [f"{value:.2f}" for value in find_percentiles(seconds, PERCENTS)] if seconds else ["–"] * len(PERCENTS)
        rows.append([kind, ends, *times])
    return format_markdown(["request", "how it ended", "seconds p50", "p90", "p99", "max"], rows)


def format_report(summary: Summary, tally: RequestTally, machine: Mapping[str, object]) -> str:
    """Returns the report in Markdown."""
    memory = ", ".join(f"{mib:.0f}" for mib in summary["memory_mib"])
    problems = (
        "\n".join(f"- {problem}" for problem in summary["problems"]) or "No request was lost, and the server is idle."
    )
    parts = [
        f"{summary['clients']} clients for {summary['seconds']:.0f} s, {tally.sent} requests of {MODEL}, at most 120 "
        "tokens a solution. A client that disconnects does so after 0.05 to 3 s; one that is answered 429 waits for "
        "as long as the answer says.",
        outcome_table(tally),
        f"Memory of the server in MiB, from before the first request to the end of the last: {memory}.",
        problems,
    ]
    return join_report("The server under load", shlex.join(["python", *sys.argv]), parts, machine=machine)


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("settings", nargs="*", help="settings of scripts/serve.py, where it is started")
    top.add_argument("--url", help="a server that is running")
    top.add_argument("--clients", type=int, default=64)
    top.add_argument("--seconds", type=float, default=60.0)
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--out", type=Path, help="write the report here")
    args = top.parse_intermixed_args()
    with nullcontext(args.url.rstrip("/")) if args.url else start_server(*args.settings) as url:
        began = time.monotonic()
        tally, memory = asyncio.run(load_server(url, args.clients, args.seconds, args.seed))
        elapsed = time.monotonic() - began
        problems = [*tally.lost, *asyncio.run(find_leaks(url))]
    if memory[-1] > MAX_GROWTH * max(memory[:6]):
        problems.append(f"memory grew from {max(memory[:6]):.0f} to {memory[-1]:.0f} MiB in the second half")
    summary: Summary = {
        "clients": args.clients,
        "seconds": round(elapsed, 1),
        "requests": tally.sent,
        "answered": sum(count for (_, outcome), count in tally.ended.items() if outcome == "answered"),
        "memory_mib": [round(mib, 1) for mib in memory],
        "problems": problems,
    }
    print(outcome_table(tally))
    if args.out:
        from reason.bench.engine import describe_machine

        args.out.write_text(format_report(summary, tally, describe_machine()), encoding="utf-8")
    print(json.dumps(summary))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
