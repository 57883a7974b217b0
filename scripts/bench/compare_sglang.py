"""Compare SGLang plain, SGLang's n-gram speculation and ours, on the CPU with the bundled target.

python scripts/bench/compare_sglang.py --out FILE.md      SGLang is where SGLANG_VENV says (tests/sglang/setup.sh)
python scripts/bench/compare_sglang.py --arms plain,NGRAM,REASON --live 4 --repeats 1

Starts a server for each arm (2 GB of memory each), lets them take turns, and stops them. Tables first, one JSON object
as stdout's last line.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from reason.bench.arguments import counts, positive
from reason.bench.engine import machine
from reason.bench.servers import ARMS, PLAIN, Model, compare
from reason.bench.servers_report import markdown, tables, verdicts
from reason.engines.launcher.server_command import Launch, free_port
from reason.engines.launcher.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600.0  # a first start compiles Python, and SGLang's n-gram trie


def arms(text: str) -> tuple[str, ...]:
    """`plain,NGRAM` as names of arms, in their usual order; plain is always among them."""
    named = set(text.split(","))
    if unknown := named - set(ARMS):
        raise argparse.ArgumentTypeError(f"knows {', '.join(map(repr, ARMS))}, not {unknown.pop()!r}")
    return tuple(arm for arm in ARMS if arm in named | {PLAIN})


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    venv = Path(os.environ.get("SGLANG_VENV", ROOT / ".venv-sglang"))
    top.add_argument("--venv", type=Path, default=venv, help="environment that has SGLang and this package")
    top.add_argument("--arms", type=arms, default=tuple(ARMS), help="NAME,NAME")
    top.add_argument("--live", type=counts, default=(1, 4, 16), help="concurrent branches")
    top.add_argument("--problems", type=positive, default=3, help="of each family")
    top.add_argument("--trajectories", type=positive, default=8, help="samples of each problem")
    top.add_argument("--nodes", type=positive, default=12, help="of a draft tree, the committed token included")
    top.add_argument("--repeats", type=positive, default=6)
    top.add_argument("--minutes", type=positive, default=12, help="begin no further repetition after that")
    top.add_argument("--out", type=Path, help="write the report to this file")
    return top


@contextmanager
def serving(args: argparse.Namespace, model: Model, folder: Path) -> Iterator[dict[str, ServerProcess]]:
    """A server for each arm, all up and paused."""
    with ExitStack() as stack:
        servers = {}
        for i, arm in enumerate(args.arms):
            nodes = ("--speculative-num-draft-tokens", str(args.nodes)) if ARMS[arm] else ()
            size = ("--max-running-requests", str(max(args.live)), "--max-total-tokens", "16384")
            launch = Launch(
                python=args.venv / "bin" / "python",
                model=model.path,
                port=free_port(),
                flags=(*ARMS[arm], *nodes, *size),
                packages=ROOT / "tests" / "sglang" / "shim",
            )
            servers[arm] = ServerProcess(launch, folder / f"{i}.log")
            stack.callback(servers[arm].stop)
            servers[arm].start()
        for server in servers.values():
            server.wait(PATIENCE_S)
            server.pause()
        yield servers


def version(python: Path) -> str:
    """Of the SGLang there."""
    command = [str(python), "-c", "import importlib.metadata as m; print(m.version('sglang'))"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    args = parser().parse_args()
    python = args.venv / "bin" / "python"
    if not python.exists():
        sys.exit(f"there is no {python}; tests/sglang/setup.sh makes it, or give --venv")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the servers are, too
    logging.disable(logging.WARNING)  # that a server has no seeds, once per run
    console = Console(stderr=not sys.stdout.isatty(), width=120)
    model = Model.of("bundled")
    work = model.work(per_family=args.problems, trajectories=args.trajectories)
    console.print(f"starting {', '.join(args.arms)} ...", highlight=False)
    with tempfile.TemporaryDirectory() as folder, serving(args, model, Path(folder)) as servers:

        def say(arm: str, live: int, run: Any) -> None:
            numbers = f"{run.accepted_length:6.3f} tokens a step {run.rate:8,.0f} tokens/s"
            console.print(f"{arm:>24} {live:3d} live {numbers}", highlight=False)

        races = compare(
            servers, model, work, live=args.live, repeats=args.repeats, seconds=60.0 * args.minutes, on_run=say
        )
    rows = [race.as_dict() for race in races]
    result = {
        "bench": "sglang",
        "sglang": version(python),
        "problems": len(work.questions),
        "families": list(dict.fromkeys(work.families)),
        "trajectories": work.trajectories,
        "max_tokens": work.max_tokens,
        "nodes": args.nodes,
        "repeats": len(races[0].runs),
        "verdicts": verdicts(rows),
        "races": rows,
        "machine": machine(),
    }
    for figures in tables(result):
        figures.show(console)
    if args.out:
        args.out.write_text(markdown(result, shlex.join(["python", *sys.argv])), encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
