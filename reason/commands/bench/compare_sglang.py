"""Compare SGLang without speculation, with its n-gram speculation and with ours, on the CPU with the bundled target.

reason bench compare_sglang --out FILE.md      SGLang is where SGLANG_VENV says (tests/sglang/setup.sh)
reason bench compare_sglang --variants plain,NGRAM,REASON-fixed,REASON --live 1,4,16,64 --repeats 3

Starts a server per variant (2 GB of memory each), runs them in turn, and stops them. Tables first; the last line of
stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from reason.bench.arguments import accept_old_flag, positive_int, positive_ints, report_path
from reason.bench.engine import describe_machine
from reason.bench.servers import PLAIN, SERVER_FLAGS, ServedModel, ServerRun, compare_servers
from reason.bench.servers_report import format_report, judge_lengths, make_tables
from reason.commands import typed
from reason.engines.launcher.python_environment import cpu_stand_ins
from reason.engines.launcher.server_command import ServerCommand, find_free_port
from reason.engines.launcher.server_process import ServerProcess

START_TIMEOUT_S = 600.0  # a first start compiles Python, and SGLang's n-gram trie


def variant_list(text: str) -> tuple[str, ...]:
    """Parses `plain,NGRAM` as names of server variants, in their usual order; plain is always included."""
    named = set(text.split(","))
    if unknown := named - set(SERVER_FLAGS):
        raise argparse.ArgumentTypeError(f"must be from {', '.join(SERVER_FLAGS)}; got {unknown.pop()!r}")
    return tuple(name for name in SERVER_FLAGS if name in named | {PLAIN})


def make_parser() -> argparse.ArgumentParser:
    top = typed.make_parser("bench compare_sglang", __doc__)
    venv = Path(os.environ.get("SGLANG_VENV", ".venv-sglang"))
    top.add_argument("--venv", type=Path, default=venv, help="environment that has SGLang and this package")
    variants = top.add_argument("--variants", type=variant_list, default=tuple(SERVER_FLAGS), help="NAME,NAME")
    accept_old_flag(top, "--arms", variants)
    top.add_argument("--live", type=positive_ints, default=(1, 4, 16, 64), help="concurrent branches")
    top.add_argument("--problems", type=positive_int, default=3, help="of each family")
    top.add_argument("--trajectories", type=positive_int, default=8, help="samples of each problem")
    top.add_argument(
        "--nodes", type=positive_int, default=12, help="nodes of a draft tree, the committed token included"
    )
    top.add_argument("--repeats", type=positive_int, default=6)
    top.add_argument("--minutes", type=positive_int, default=12, help="begin no further repetition after that")
    top.add_argument("--out", type=report_path, help="write the report to this file")
    return top


@contextmanager
def serving(args: argparse.Namespace, model: ServedModel, folder: Path) -> Iterator[dict[str, ServerProcess]]:
    """Yields a running but paused server per variant; stops them at the end."""
    with ExitStack() as stack:
        servers = {}
        for i, variant in enumerate(args.variants):
            nodes = ("--speculative-num-draft-tokens", str(args.nodes)) if SERVER_FLAGS[variant] else ()
            size = ("--max-running-requests", str(max(args.live)), "--max-total-tokens", "32768")
            launch = ServerCommand(
                python=args.venv / "bin" / "python",
                model=model.path,
                port=find_free_port(),
                flags=(*SERVER_FLAGS[variant], *nodes, *size),
                packages=cpu_stand_ins(),
            )
            servers[variant] = ServerProcess(launch, folder / f"{i}.log")
            stack.callback(servers[variant].stop)
            servers[variant].start()
        for server in servers.values():
            server.wait_until_healthy(START_TIMEOUT_S)
            server.pause()
        yield servers


def sglang_version(python: Path) -> str:
    """Returns the version of SGLang in the environment of `python`."""
    command = [str(python), "-c", "import importlib.metadata as m; print(m.version('sglang'))"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run_program() -> None:
    args = make_parser().parse_args()
    python = args.venv / "bin" / "python"
    if not python.exists():
        sys.exit(f"there is no {python}; tests/sglang/setup.sh makes it, or give --venv")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the servers stop, too
    logging.disable(logging.WARNING)  # the warning that a server has no seeds, once per run
    console = Console(stderr=not sys.stdout.isatty(), width=120)
    model = ServedModel.load_settings("bundled")
    workload = model.make_workload(per_family=args.problems, trajectories=args.trajectories)
    console.print(f"starting {', '.join(args.variants)} ...", highlight=False)
    with tempfile.TemporaryDirectory() as folder, serving(args, model, Path(folder)) as servers:

        def print_run(variant: str, live: int, run: ServerRun) -> None:
            numbers = f"{run.accepted_length:6.3f} tokens a step {run.tokens_per_s:8,.0f} tokens/s"
            console.print(f"{variant:>24} {live:3d} live {numbers}", highlight=False)

        speed_runs = compare_servers(
            servers,
            model,
            workload,
            live=args.live,
            repeats=args.repeats,
            seconds=60.0 * args.minutes,
            on_run=print_run,
        )
    rows = [run.to_json() for run in speed_runs]
    result = {
        "bench": "sglang",
        "sglang": sglang_version(python),
        "problems": len(workload.questions),
        "families": list(dict.fromkeys(workload.families)),
        "trajectories": workload.trajectories,
        "max_tokens": workload.max_tokens,
        "nodes": args.nodes,
        "repeats": len(speed_runs[0].runs),
        "goals": judge_lengths(rows),
        "speed_runs": rows,
        "machine": describe_machine(),
    }
    for table in make_tables(result):
        table.print_table(console)
    if args.out:
        args.out.write_text(format_report(result, typed.join_command("bench compare_sglang")), encoding="utf-8")
    print(json.dumps(result))
