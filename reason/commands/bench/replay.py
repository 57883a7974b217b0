"""Replay recorded texts through drafters and count accepted tokens: `reason bench replay FILE`.

FILE holds JSON lines such as {"problem": "...", "samples": ["...", "..."]}; `question` or `prompt`, and `completions`
or `solutions`, are accepted too, and instead of the list one object with a `solution` per model. The trajectories of a
problem are replayed one after the other. Needs no model. Prints tables; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from reason.bench.arguments import name_list, positive_int, positive_ints, report_path, run_benchmark
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    top = typed.make_parser("bench replay", __doc__)
    top.add_argument("file", type=Path, metavar="FILE")
    top.add_argument("--tokenizer", default="bundled:target", help="bundled:NAME, a folder or a hub id")
    top.add_argument("--nodes", type=positive_ints, default=(8, 16, 64), help="draft nodes")
    top.add_argument("--drafters", type=name_list, help="NAME,NAME; default: all")
    top.add_argument("--limit", type=positive_int, help="only the first so many problems")
    top.add_argument("--plot", type=report_path, help="draw accepted length by trajectory to this file")
    top.add_argument("--out", type=report_path, help="write a report to this file")
    return top


def bench_replay(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.plots import plot_replay, require_matplotlib
    from reason.bench.replay import DRAFTERS, encode_recordings, read_recordings, replay_drafter, validate_names
    from reason.bench.replay_report import format_report, print_report

    try:
        if args.plot:
            require_matplotlib()
        drafters = validate_names(args.drafters or tuple(DRAFTERS))
        recordings = encode_recordings(read_recordings(args.file)[: args.limit], args.tokenizer)
    except OSError as error:
        sys.exit(f"{error.filename or args.file}: {error.strerror or error}")
    except ValueError as error:
        sys.exit(str(error))
    rows = []
    for nodes in args.nodes:
        for name in drafters:
            rows.append(replay_drafter(name, recordings, nodes))
            console.print(f"{nodes:3d} nodes {name:<18} {rows[-1]['tokens_per_forward']:5.2f} tokens/forward")
    result: dict[str, object] = {
        "replay": str(args.file),
        "tokenizer": args.tokenizer,
        "problems": len(recordings),
        "tokens": rows[0]["tokens"],
        "rows": rows,
    }
    print_report(result, console)
    if args.plot:
        plot_replay(args.plot, rows)
    if args.out:
        link = os.path.relpath(args.plot, args.out.parent) if args.plot else None
        args.out.write_text(format_report(result, typed.join_command("bench replay"), link), encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_replay)
