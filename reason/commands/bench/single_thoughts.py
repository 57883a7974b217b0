"""Compare searches with single thoughts, and with votes of them, at equal tokens.

reason bench single_thoughts model=thinker +task=puzzles --searches 'rebase step=fixed_length' \\
    --thoughts '' early_exit=converged model.thinking.waits=2 --widths 2 4 8 --seeds 0 1 2

A search is compared with one thought that may have as many tokens, with the best one at whatever tokens, and with a
vote. Arguments of the form NAME=VALUE are settings of `reason solve`, for all runs. Every run is resumable and has
its own folder: the same command continues a stopped comparison.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from reason.bench.arguments import describe_length, positive_int, report_path, run_comparison
from reason.commands import typed
from reason.commands.bench.evaluate import common_settings


def make_parser() -> argparse.ArgumentParser:
    top = typed.make_parser("bench single_thoughts", __doc__)
    top.add_argument("settings", nargs="*", help="settings of `reason solve`, for all runs")
    top.add_argument("--searches", nargs="+", required=True, help="options of search, each with its own settings")
    top.add_argument("--widths", nargs="+", type=positive_int, default=[2, 4, 8], help="values of search.n")
    top.add_argument("--thoughts", nargs="+", default=[""], help="settings of the thoughts by themselves; '' for none")
    top.add_argument("--samples", type=positive_int, default=8, help="thoughts by themselves, per problem and seed")
    top.add_argument("--seeds", nargs="+", type=int, default=[0])
    top.add_argument("--problems", type=positive_int, default=100)
    top.add_argument("--folder", type=Path, default=Path("outputs/single_thoughts"), help="where the runs are kept")
    top.add_argument("--out", type=report_path, help="write the report here")
    return top


def compare_with_singles(args: argparse.Namespace, console: Console) -> str:
    """Returns the report."""
    from reason.bench.engine import describe_machine
    from reason.bench.runs import execute_runs, require_gold_answers, validate_runs
    from reason.bench.single_thoughts import format_singles, join_seeds, plan_runs, pool_thoughts

    common = common_settings(args)
    runs = plan_runs(args.searches, args.widths, args.seeds, common)
    sampling = [f"self_consistency {settings}".strip() for settings in args.thoughts]
    sampled = plan_runs(sampling, [args.samples], args.seeds, common)
    specs = [*sampled, *runs]
    validate_runs(specs)
    require_gold_answers(specs[0])
    console.print(describe_length(runs=len(specs), problems=args.problems))
    outcomes = dict(zip(specs, execute_runs(specs, args.folder, console), strict=True))
    pools = [
        pool_thoughts(settings, [outcomes[spec] for spec, (of, _) in sampled.items() if of == search], args.samples)
        for settings, search in zip(args.thoughts, sampling, strict=True)
    ]
    return format_singles(
        join_seeds(outcomes, runs),
        pools,
        command=typed.join_command("bench single_thoughts"),
        machine=describe_machine(),
        num_seeds=len(args.seeds),
    )


def run_program() -> int:
    return run_comparison(make_parser(), compare_with_singles)
