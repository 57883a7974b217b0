"""Measure the local engine beside transformers, llama.cpp and CTranslate2 on a CPU, with the same weights.

reason bench peers                                    the bundled target, 1 to 64 branches; some minutes
reason bench peers --branches 1,16,512 --rounds 9 --out FILE.md

An engine that is not installed is named with what to install; pip install 'reason-search[peers]' gets all and builds
llama.cpp, which takes minutes. Checkpoints are converted once, into the cache folder. Tables first; the last line
of stdout is one JSON object.
"""

from __future__ import annotations

import argparse

from rich.console import Console

from reason.bench.arguments import (
    add_report_argument,
    describe_length,
    name_list,
    positive_int,
    positive_ints,
    require_names,
    run_benchmark,
)
from reason.commands import typed


def make_parser() -> argparse.ArgumentParser:
    parser = typed.make_parser("bench peers", __doc__)
    parser.add_argument("--model", default="bundled:target", help="a Llama checkpoint: bundled:NAME or a folder")
    parser.add_argument("--engines", type=name_list, help="NAME,NAME beside ours; default: all that are installed")
    parser.add_argument("--branches", type=positive_ints, default=(1, 4, 16, 64))
    parser.add_argument("--prompt", type=positive_int, default=300, help="prompt tokens")
    parser.add_argument("--new", type=positive_int, default=100, help="new tokens per branch")
    parser.add_argument("--rounds", type=positive_int, default=5, help="runs of each engine and number of branches")
    parser.add_argument("--greedy-prompts", type=positive_int, default=4, help="prompts of which texts are compared")
    parser.add_argument("--threads", type=positive_int, default=1, help="threads of every engine")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of weights and products; an engine without it stays in float32, and its line says so",
    )
    add_report_argument(parser)
    return parser


def bench_peers(args: argparse.Namespace, console: Console) -> dict[str, object]:
    from reason.bench.baselines import BranchWorkload
    from reason.bench.engine import describe_machine, open_model
    from reason.bench.peers.comparison import compare_greedy, compare_peers
    from reason.bench.peers.installed import OURS, PEERS, make_peer_model, open_peers
    from reason.bench.peers.limits import measure_limit
    from reason.bench.peers.report import PeerReport
    from reason.bench.peers.workloads import make_prompts
    from reason.engines.cost_store import identify_machine
    from reason.models.checkpoint import eos_ids, find_model, load_tokenizer

    others = [name for name in args.engines or PEERS if name != OURS]
    require_names("--engines", others, PEERS)
    source = find_model(args.model, key="--model").source
    tokenizer = load_tokenizer(source)
    ends = eos_ids(source, tokenizer)
    model, backend = open_model(source, "cpu", args.dtype)
    engines, missing = open_peers(make_peer_model(source, backend, model, args.threads), [OURS, *others])
    for name in (OURS, *others):
        console.print(f"{name}: {engines[name].description if name in engines else missing[name]}", highlight=False)
    prompts = make_prompts(tokenizer, args.prompt, args.greedy_prompts)
    agreements = compare_greedy(engines, prompts, args.new, ends)
    workloads = [BranchWorkload(prompts[0], args.new, branches) for branches in args.branches]
    console.print(describe_length(engines=len(engines), sizes=len(workloads), rounds=args.rounds))
    comparisons = compare_peers(
        engines,
        workloads,
        args.rounds,
        lambda name, workload, run: console.print(
            f"{name:>16} {workload.branches:3d} branches {run.wall:7.3f} s, CPU {run.cpu:7.3f} s", highlight=False
        ),
    )
    report = PeerReport(
        args.model,
        args.rounds,
        args.threads,
        {"processor": identify_machine()["processor"], **describe_machine()},
        {name: engine.description for name, engine in engines.items()},
        missing,
        agreements,
        comparisons,
        [measure_limit(model.config, workload, backend.dtype) for workload in workloads],
    )
    report.print_tables(console)
    if args.out:
        args.out.write_text(report.to_markdown(typed.join_command("bench peers")), encoding="utf-8")
    return report.to_json()


def run_program() -> None:
    run_benchmark(make_parser(), bench_peers)
