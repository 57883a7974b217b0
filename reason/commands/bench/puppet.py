"""Measure speculation at a real model's price: a random body of a real shape writes what the bundled model writes.

reason bench puppet                                       plain, stand, suffix, hybrid at 1, 4, 16 live
reason bench puppet --shape qwen2.5-7b --device cuda --out FILE.md
reason bench puppet --search best_of_n,ets --width 16     whole searches with the bundled reward model
reason bench puppet --recordings FILE                     recorded solutions of real models, token for token

Every run comes after a plain run, in one process. FILE of recordings is one that `reason bench replay` reads. Tables
first; the last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from reason.bench.arguments import (
    add_report_argument,
    add_torch_arguments,
    name_list,
    positive_int,
    positive_ints,
    require_names,
    run_benchmark,
)
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench puppet", __doc__)
    parser.add_argument("--shape", default="qwen2.5-0.5b", help="the body's: qwen2.5-0.5b, -1.5b, -7b or -32b")
    parser.add_argument("--drafters", type=name_list, default=("stand", "suffix", "hybrid"), help="NAME,NAME")
    parser.add_argument("--branches", type=positive_ints, default=(1, 4, 16), help="branches decoded together")
    parser.add_argument("--laps", type=positive_int, default=3, help="runs of every drafter")
    parser.add_argument(
        "--problems", type=positive_int, default=1, help="of each family; with --search or --recordings in all"
    )
    parser.add_argument("--trajectories", type=positive_int, default=8, help="branches of each problem")
    parser.add_argument("--max-tokens", type=positive_int, help="per trajectory; default: the model's limit")
    parser.add_argument("--kv-mib", type=positive_int, default=512, help="size of the KV pool of an engine")
    parser.add_argument("--search", type=name_list, help="NAME,NAME: measure searches instead of plain sampling")
    parser.add_argument("--width", type=positive_int, default=16, help="of the searches")
    recorded = parser.add_argument_group("recorded texts instead of the bundled writer's")
    recorded.add_argument("--recordings", type=Path, metavar="FILE")
    recorded.add_argument("--tokenizer", help="bundled:NAME, a folder or a hub id; default: learned from FILE")
    add_torch_arguments(parser)
    add_report_argument(parser)
    return parser


def bench_puppet(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from dataclasses import replace

    from reason.bench.drafter_setups import AT_FULL_SPEED
    from reason.bench.engine import describe_machine
    from reason.bench.puppet import find_shape, make_body
    from reason.bench.puppet_report import format_report, print_report
    from reason.bench.puppet_search import PLAIN, SearchSettings, measure_searches
    from reason.bench.recorded_target import RecordedTarget
    from reason.bench.speculation import REFERENCES, SpeculationBench, SpeculationSettings
    from reason.bench.workload import BundledTarget, SpeculationTarget
    from reason.config.errors import ConfigError

    def log_line(line: str) -> None:
        console.print(line, highlight=False)

    if args.recordings and args.search:
        sys.exit("--recordings has no searches: a recorded text does not change with a search's decisions")
    require_names("--drafters", args.drafters, (*AT_FULL_SPEED, *REFERENCES))
    speed: list[object] = []
    searches: list[object] = []
    target: SpeculationTarget
    try:
        shape = find_shape(args.shape)
        settings = SpeculationSettings(
            speed_setups=("plain", *args.drafters), speed_problems=args.problems, live=args.branches,
            temperatures=(1.0,), repeats=args.laps, trajectories=args.trajectories, kv_mib=args.kv_mib,
            max_tokens=args.max_tokens,
        )  # fmt: skip
        if args.recordings:
            body = make_body(shape, device=args.device, dtype=args.dtype)
            target = recorded = RecordedTarget.read(
                body, args.recordings, tokenizer=args.tokenizer, limit=args.problems
            )
            settings = replace(settings, trajectories=min(args.trajectories, recorded.num_samples))
        else:
            # the writer in float32 whatever the body's dtype: its texts are then the same on every machine
            target = writer = BundledTarget.load(device=args.device, dtype="float32")
            puppet = writer.attach_body(shape, dtype=args.dtype)
            body, target = puppet.body, replace(writer, backend=puppet)
        if args.search:
            search_settings = SearchSettings(
                args.search, (PLAIN, *args.drafters), args.width, args.problems, args.laps, args.kv_mib, args.max_tokens
            )
            searches = [
                point.to_json() for point in measure_searches(writer, puppet, search_settings, log_line=log_line)
            ]
    except OSError as error:
        sys.exit(f"{error.filename or args.recordings}: {error.strerror or error}")
    except (ValueError, ConfigError) as error:
        sys.exit(str(error))
    if not args.search:
        with TemporaryDirectory() as folder:
            bench = SpeculationBench(target, settings, Path(folder), log_line=log_line)
            speed = [run.to_json() for run in bench.measure_speed()]
    result: dict[str, object] = {
        "bench": "puppet",
        "body": {
            "shape": args.shape,
            "parameters": shape.count_weights(),
            "device": str(body.device),
            "dtype": str(body.dtype).removeprefix("torch."),
        },
        "recordings": args.recordings.name if args.recordings else None,
        "settings": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
        "speed": speed,
        "searches": searches,
        "machine": describe_machine(),
    }
    print_report(result, console)
    if args.out:
        args.out.write_text(format_report(result, typed.join_command("bench puppet")), encoding="utf-8")
    return result


def run_program() -> None:
    run_benchmark(make_parser(), bench_puppet)
