"""Compare searches with single thoughts, and with votes of them, at equal tokens.

python scripts/bench/single_thoughts.py model=thinker +task=puzzles --searches 'rebase step=fixed_length' \\
    --thoughts '' early_exit=converged model.thinking.waits=2 --widths 2 4 8 --seeds 0 1 2

A search is compared with one thought that may have as many tokens, with the best one at whatever tokens, and with a
vote. Arguments of the form NAME=VALUE are settings of scripts/solve.py, for all runs. Every run is resumable and has
its own folder: the same command continues a stopped comparison.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from pathlib import Path

from rich.console import Console

from reason import ConfigError
from reason.bench.arguments import positive_int
from reason.runs.output_folder import OutputError


def make_parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("settings", nargs="*", help="settings of scripts/solve.py, for all runs")
    top.add_argument("--searches", nargs="+", required=True, help="options of search, each with its own settings")
    top.add_argument("--widths", nargs="+", type=positive_int, default=[2, 4, 8], help="values of search.n")
    top.add_argument("--thoughts", nargs="+", default=[""], help="settings of the thoughts by themselves; '' for none")
    top.add_argument("--samples", type=positive_int, default=8, help="thoughts by themselves, per problem and seed")
    top.add_argument("--seeds", nargs="+", type=int, default=[0])
    top.add_argument("--problems", type=positive_int, default=100)
    top.add_argument("--folder", type=Path, default=Path("outputs/single_thoughts"), help="where the runs are kept")
    top.add_argument("--out", type=Path, help="write the report here")
    return top


def compare_with_singles(args: argparse.Namespace, console: Console) -> str:
    """Returns the report."""
    from reason.bench.engine import describe_machine
    from reason.bench.runs import execute_run, validate_runs
    from reason.bench.single_thoughts import format_singles, join_seeds, plan_runs, pool_thoughts

    common = (f"limit={args.problems}", f"task.size={args.problems}", "speculation=off", *args.settings)
    runs = plan_runs(args.searches, args.widths, args.seeds, common)
    sampling = [f"self_consistency {settings}".strip() for settings in args.thoughts]
    sampled = plan_runs(sampling, [args.samples], args.seeds, common)
    specs = [*sampled, *runs]
    validate_runs(specs)
    outcomes = {}
    for number, spec in enumerate(specs, 1):
        console.print(f"{number} of {len(specs)}: {spec.search}, width {spec.width}", style="bold", markup=False)
        outcomes[spec] = execute_run(spec, args.folder / spec.folder_name, console)
    pools = [
        pool_thoughts(settings, [outcomes[spec] for spec, (of, _) in sampled.items() if of == search], args.samples)
        for settings, search in zip(args.thoughts, sampling, strict=True)
    ]
    return format_singles(
        join_seeds(outcomes, runs),
        pools,
        command=shlex.join(["python", *sys.argv]),
        machine=describe_machine(),
        num_seeds=len(args.seeds),
    )


def main() -> int:
    args = make_parser().parse_intermixed_args()
    logging.disable(logging.ERROR)  # transformers logs every setting that it ignores
    console = Console(stderr=True, highlight=False)
    try:
        text = compare_with_singles(args, console)
    except (ConfigError, ValueError, OutputError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print(f"stopped; the same command continues (runs are in {args.folder})", markup=False)
        return 130
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
