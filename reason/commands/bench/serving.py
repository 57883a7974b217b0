"""Measure the HTTP endpoint: requests and tokens per second, and latencies, by preset and number of clients.

reason bench serving                                              the bundled models, presets single and best-of-16
reason bench serving --presets majority-16 --clients 4,64 --server "" --server "serve.concurrency=8" --repeats 5
reason bench serving --url http://HOST:PORT --presets single      a server that is running

A server is started for each turn (`--server SETTINGS`, several times: they take turns), or one that is running is
asked. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import shlex
from contextlib import nullcontext

from rich.console import Console

from reason.bench.arguments import (
    add_report_argument,
    describe_length,
    name_list,
    positive_int,
    positive_ints,
    run_benchmark,
)
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench serving", __doc__)
    parser.add_argument("--presets", type=name_list, default=("single", "best-of-16"), help="NAME,NAME")
    parser.add_argument("--clients", type=positive_ints, default=(1, 8, 32), help="N,N")
    parser.add_argument("--requests", type=positive_int, default=100, help="of each turn, preset and number of clients")
    parser.add_argument("--server", action="append", help="settings of a server that is started; default: none")
    parser.add_argument("--url", help="a server that is running, in place of --server; REASON_API_KEY is its key")
    parser.add_argument("--repeats", type=positive_int, default=3, help="turns")
    parser.add_argument("--threads", type=positive_int, help="torch threads of the servers; default: chosen by torch")
    add_report_argument(parser)
    return parser


def bench_serving(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.serving import (
        format_report,
        make_table,
        measure_load,
        parse_address,
        start_server,
        summarise_loads,
    )

    if args.url and args.server:
        raise ValueError("--url asks a server that is running and --server starts one: give one of the two")
    if args.url:
        parse_address(args.url)
    servers, key = [args.url] if args.url else args.server or [""], os.environ.get("REASON_API_KEY")
    console.print(
        describe_length(
            servers=len(servers), presets=len(args.presets), client_counts=len(args.clients), repeats=args.repeats
        )
    )
    loads = []
    for turn in range(args.repeats):
        for server in servers:
            with nullcontext(args.url) if args.url else start_server(*shlex.split(server)) as url:
                for preset in args.presets:
                    most = max(args.clients)
                    measure_load(server, url, preset, clients=most, requests=most, seed=10**6, key=key)  # warm up
                    for number, clients in enumerate(args.clients):
                        # no request twice: a running server would know its prompt
                        seed = (turn * len(args.clients) + number) * args.requests
                        loads.append(
                            measure_load(
                                server, url, preset, clients=clients, requests=args.requests, seed=seed, key=key
                            )
                        )
    cases = summarise_loads(loads)
    make_table(cases).print_table(console)
    # imported late: torch would take memory and time beside the servers
    from reason.bench.engine import describe_machine

    result: dict[str, object] = {
        "bench": "serving",
        "cases": cases,
        "repeats": args.repeats,
        "machine": describe_machine(),
    }
    if args.out:
        args.out.write_text(format_report(result, typed.join_command("bench serving")), encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_serving)
