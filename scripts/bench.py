"""Measure: `python scripts/bench.py engine`. Tables on the way, one JSON object as the last line of stdout."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
from pathlib import Path

from rich.console import Console


def counts(text: str) -> list[int]:
    """`1,4,16` as numbers."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"wants numbers >= 1, got {text}")
    return numbers


def positive(text: str) -> int:
    return counts(text)[0]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__)
    themes = top.add_subparsers(dest="theme", required=True, metavar="engine")
    engine = themes.add_parser("engine", help="tokens per second, KV held, distance to the machine's limit")
    engine.add_argument("--model", help="checkpoint (bundled:NAME, folder, hub id); default: the bundled target")
    engine.add_argument("--branches", type=counts, default=[1, 4, 16, 64])
    engine.add_argument("--prompt", type=counts, default=[300, 600], help="prompt tokens, one or several")
    engine.add_argument("--new", type=positive, default=100, help="new tokens per branch")
    engine.add_argument("--repeats", type=positive, default=3)
    engine.add_argument("--threads", type=positive, help="torch threads; default: torch's own choice")
    engine.add_argument("--device", default="auto")
    engine.add_argument("--dtype", default="auto")
    engine.add_argument("--out", type=Path, help="write the report to this file")
    return top


def bench_engine(args: argparse.Namespace, console: Console) -> dict[str, object]:
    import torch

    from reason.checkpoint import bundled_names, find_model
    from reason.measure.engine import machine, measure, modules, open_model
    from reason.measure.engine_report import markdown, show

    if args.threads:
        torch.set_num_threads(args.threads)
    named = args.model or ("bundled:target" if "target" in bundled_names() else None)
    console.print(f"model: {named or 'random weights of the bundled size (there is no bundled target yet)'}")
    model, backend = open_model(named and find_model(named).source, args.device, args.dtype)
    points = measure(
        model,
        backend,
        branches=args.branches,
        prompts=args.prompt,
        new=args.new,
        repeats=args.repeats,
        on_run=lambda name, n, rate: console.print(f"{name:>15} {n:3d} branches {rate:8,.0f} tokens/s"),
    )
    result: dict[str, object] = {
        "bench": "engine",
        "model": named,
        "device": str(backend.device),
        "dtype": str(backend.dtype),
        "prompt": args.prompt,
        "new": args.new,
        "repeats": args.repeats,
        "modules_vs_fused": modules(model, backend, args.branches),
        "points": [point.as_dict() for point in points],
        "machine": machine(),
    }
    show(points, console)
    if args.out:
        args.out.write_text(markdown(points, result, shlex.join(["python", *sys.argv])), encoding="utf-8")
    return result


def main() -> None:
    args = parser().parse_args()
    logging.disable(logging.ERROR)  # transformers announces every setting it does not like
    console = Console(stderr=not sys.stdout.isatty(), width=120)
    result = bench_engine(args, console)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
