"""Measure: `engine` or `speculation`. Tables first, one JSON object as the last line of stdout."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from reason.bench.arguments import bind_threads, counts, names, positive


def heats(text: str) -> tuple[float, ...]:
    """`1,0.6,0` as temperatures."""
    numbers = tuple(float(part) for part in text.split(","))
    if min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"wants numbers >= 0, got {text}")
    return numbers


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__)
    themes = top.add_subparsers(dest="theme", required=True, metavar="engine|speculation")
    add_engine(themes)
    add_speculation(themes)
    for theme in themes.choices.values():
        theme.add_argument("--threads", type=positive, help="torch threads; default: torch's own choice")
        theme.add_argument("--device", default="auto")
        theme.add_argument("--dtype", default="auto")
        theme.add_argument("--out", type=Path, help="write the report to this file")
    return top


def add_engine(themes: Any) -> None:
    engine = themes.add_parser("engine", help="tokens per second, KV held, distance to the machine's limit")
    engine.add_argument("--model", help="checkpoint (bundled:NAME, folder, hub id); default: the bundled target")
    engine.add_argument("--branches", type=counts, default=(1, 4, 16, 64))
    engine.add_argument("--prompt", type=counts, default=(300, 600), help="prompt tokens, one or several")
    engine.add_argument("--new", type=positive, default=100, help="new tokens per branch")
    engine.add_argument("--repeats", type=positive, default=3)
    engine.set_defaults(run=bench_engine)


def add_speculation(themes: Any) -> None:
    spec = themes.add_parser("speculation", help="tokens accepted per forward pass, speed against plain decoding")
    spec.add_argument("--quick", action="store_true", help="small sizes where none are given; nothing follows from it")
    spec.add_argument("--only", choices=["nodes", "speed"], help="one of the two parts")
    spec.add_argument("--trajectories", type=positive, help="branches of each problem")
    spec.add_argument("--max-tokens", type=positive, help="of a trajectory; default: the model's")
    spec.add_argument("--kv-mib", type=positive, help="size of an engine's KV pool")
    spec.add_argument("--plots", metavar="PREFIX", help="draw PREFIX-acceptance.png and PREFIX-speed.png")
    nodes = spec.add_argument_group("acceptance at equal numbers of draft nodes")
    nodes.add_argument("--contenders", type=names, help="NAME,NAME")
    nodes.add_argument("--problems", type=positive, help="held-out problems of each family")
    nodes.add_argument("--nodes", type=counts, help="draft nodes for each branch")
    nodes.add_argument("--temperatures-at-equal-nodes", type=heats)
    nodes.add_argument("--live-at-equal-nodes", type=positive, help="branches decoded together")
    nodes.add_argument("--tuning-problems", type=positive, help="training problems of each family, for templates")
    nodes.add_argument("--tuning-trajectories", type=positive, help="branches of each of them")
    nodes.add_argument("--tuning-nodes", type=positive, help="of the static tree to begin with")
    nodes.add_argument("--templates", type=Path, help="folder to keep learned templates in, and to take them from")
    speed = spec.add_argument_group("speed against plain decoding")
    speed.add_argument("--racers", type=names, help="NAME,NAME")
    speed.add_argument("--speed-problems", type=positive, help="held-out problems of each family")
    speed.add_argument("--live", type=counts, help="branches decoded together")
    speed.add_argument("--temperatures", type=heats, help="the first is the one that is repeated")
    speed.add_argument("--repeats", type=positive)
    spec.set_defaults(run=bench_speculation)


def bench_engine(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from reason.bench.engine import machine, measure, modules, open_model
    from reason.bench.engine_report import markdown, show
    from reason.models.checkpoint import bundled_names, find_model

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
    result = {
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


def bench_speculation(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from reason.bench.engine import machine
    from reason.bench.plots import plot_acceptance, plot_speed, require_matplotlib
    from reason.bench.speculation import QUICK, Bench, Settings
    from reason.bench.speculation_report import markdown, show
    from reason.bench.workload import Target

    given = {field.name: getattr(args, field.name) for field in fields(Settings)}
    base = QUICK if args.quick else Settings()
    try:
        settings = replace(base, **{key: value for key, value in given.items() if value is not None})
        if args.plots:
            require_matplotlib()
    except ValueError as error:
        sys.exit(str(error))
    target = Target.load(device=args.device, dtype=args.dtype)
    with nullcontext(args.templates) if args.templates else TemporaryDirectory() as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        bench = Bench(target, settings, Path(folder), say=lambda line: console.print(line, highlight=False))
        result = bench.result(nodes=args.only != "speed", speed=args.only != "nodes")
    result |= {"device": str(target.backend.device), "dtype": str(target.backend.dtype), "machine": machine()}
    show(result, console)
    plots = []
    for part, plot in (("acceptance", plot_acceptance), ("speed", plot_speed)):
        if args.plots and result[part]:
            plots.append(Path(f"{args.plots}-{part}.png"))
            plot(plots[-1], result)
    if args.out:
        links = [os.path.relpath(plot, args.out.parent) for plot in plots]
        args.out.write_text(markdown(result, shlex.join(["python", *sys.argv]), links), encoding="utf-8")
    return result


def main() -> None:
    args = parser().parse_args()
    bind_threads(args.threads)
    logging.disable(logging.ERROR)  # transformers announces every setting it does not like
    console = Console(stderr=not sys.stdout.isatty(), width=120)
    print(json.dumps(args.run(args, console)))


if __name__ == "__main__":
    main()
