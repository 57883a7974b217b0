"""Compare searches at equal compute on the same problems, and write a report with plots.

reason bench evaluate                                 searches at widths 4, 16, 64; 200 bundled problems
reason bench evaluate --searches best_of_n rebase "mcts search.value=rollout" --widths 16 --problems 50
reason bench evaluate model=qwen2.5-math-1.5b +task=math500 --widths 16
reason bench evaluate model=thinker +task=puzzles --think-tokens 100 200 400 800 --widths 1 8

--halving drops searches that are behind after some problems; --write-front saves what was measured for search=auto.
--ledger FILE keeps each finished run as a line of a file that can be committed: runs of several sessions and machines
add up, and --report-only reports on those that are there.
With --think-tokens the searches are compared over budgets of the thought, ended by force and cut, and a plot shows it.
Arguments of the form NAME=VALUE are settings of `reason solve`, for all runs. Every run is resumable and has its own
folder: the same command continues a stopped comparison.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from reason.bench.arguments import describe_length, positive_int, report_path, run_comparison
from reason.commands import typed
from reason.config.compose import list_options, load_option
from reason.config.errors import ConfigError

DEFAULTS = ("speculation=off",)  # at the load of this comparison plain decoding is about as fast, and steadier
NOT_BY_DEFAULT = {
    "auto",  # it is one of the others
    "self_consistency",  # it chooses differently among the samples of best_of_n: it is a baseline of every comparison
    "treepo",  # it samples trees for training, and a vote over it is one over fewer independent samples
    "cntp",  # it changes how a token is drawn, in many short requests
    "pg_td",  # its value is that of a whole solution: it is for judges of those
    "pdr",  # these need a model that follows instructions, or was trained for their forms
    "inftythink",
    "inftythink_notes",
    "pdr_notes",
    "self_refine",
}


def make_parser() -> argparse.ArgumentParser:
    top = typed.make_parser("bench evaluate", __doc__)
    top.add_argument("settings", nargs="*", help="settings of `reason solve`, for all runs")
    searches = "options of search, each with its own settings; default: those that any model can do"
    top.add_argument("--searches", nargs="+", help=searches)
    top.add_argument("--widths", nargs="+", type=positive_int, default=[4, 16, 64], help="values of search.n")
    samples = "samples of best-of-N to compare with at equal tokens; default: 1.25 times the widest; 0: no run for it"
    top.add_argument("--baseline", type=int, metavar="N", help=samples)
    reach = "run whose accuracy the others are to reach; default: the widest best-of-N"
    top.add_argument("--reach", type=search_at_width, metavar="SEARCH:WIDTH", help=reach)
    top.add_argument("--problems", type=positive_int, default=200)
    top.add_argument("--seeds", nargs="+", type=int, help="run everything once for each of these seeds of the run")
    top.add_argument(
        "--halving",
        type=positive_int,
        metavar="FIRST",
        help="run on so many problems first, drop searches that are behind, double the problems, and so on",
    )
    top.add_argument(
        "--write-front",
        type=report_path,
        metavar="FILE",
        help="write what was measured here, for search=auto search.front=FILE",
    )
    top.add_argument(
        "--think-tokens", nargs="+", type=positive_int, help="budgets of the thought, for a model that thinks"
    )
    top.add_argument("--folder", type=Path, default=Path("outputs/evaluate"), help="where the runs are kept")
    top.add_argument("--ledger", type=Path, metavar="FILE", help="finished runs: read first, and added to")
    top.add_argument("--report-only", action="store_true", help="run nothing: report on what the ledger has")
    older = "read runs of the ledger also where defaults of settings have changed since"
    top.add_argument("--accept-older", action="store_true", help=older)
    top.add_argument("--out", type=report_path, help="write the report here, its plots beside it")
    return top


def search_at_width(text: str) -> tuple[str, int]:
    """`best_of_n:64` as a search and a width. Raises: ValueError or ArgumentTypeError."""
    search, _, width = text.rpartition(":")
    return search, positive_int(width)


def compare_searches(args: argparse.Namespace, console: Console) -> str:
    """Returns the report on searches at equal compute; writes its plots."""
    from reason.bench.comparison import RunSource, choose_goal, plan_specs
    from reason.bench.evaluation_plots import draw_plots
    from reason.bench.evaluation_report import format_report
    from reason.bench.front import measure_search
    from reason.bench.halving import halve, plan_rungs
    from reason.bench.ledger import Ledger
    from reason.bench.runs import require_gold_answers, validate_runs
    from reason.config.front import read_front, write_front

    searches = args.searches or [name for name in list_options("search") if name not in NOT_BY_DEFAULT]
    specs = plan_specs(searches, args.widths, args.baseline, common_settings(args))
    goal = choose_goal(specs, args.reach, args.widths)
    if args.write_front and not any(spec.search == "best_of_n" for spec in specs):
        raise ConfigError("--write-front counts costs in solutions of best-of-N: leave out --baseline 0")
    if args.write_front and args.write_front.exists():
        read_front(args.write_front)  # a broken one is refused before hours of runs
    validate_runs(specs)
    if not args.report_only:
        require_gold_answers(specs[0])
    ledger = Ledger(args.ledger, accepts_older=args.accept_older) if args.ledger else None
    machine = {} if args.report_only else describe_this_machine()
    source = RunSource(args.folder, ledger, args.seeds or [None], machine, console)
    missing: list[str] = []
    if ledger is not None:
        lacking = {spec: text for spec in specs if (text := source.find_missing(spec, args.problems))}
        console.print(
            f"{args.ledger}: has {len(specs) - len(lacking)} of {len(specs)} searches", markup=False, soft_wrap=True
        )
        for difference in ledger.find_other_settings(specs):
            console.print(f"{args.ledger}: runs that differ by {difference} are not read", markup=False, soft_wrap=True)
        if args.report_only:
            specs, missing = [spec for spec in specs if spec not in lacking], list(lacking.values())
    if not specs:
        raise ConfigError(f"{args.ledger} has none of these runs")
    if not args.report_only:
        length = describe_length(runs=len(specs), seeds=len(source.seeds), problems=args.problems)
        at_most = "at most " if args.halving else ""
        console.print(f"{at_most}{length}; the same command continues a stopped comparison")

    rungs = [args.problems] if args.halving is None else plan_rungs(args.halving, args.problems)
    outcomes, dropped = halve(specs, rungs, source.execute)
    command = typed.join_command("bench evaluate")
    if args.write_front:
        origin = str(args.out) if args.out else command
        write_front(args.write_front, [measure_search(outcome, outcomes, origin) for outcome in outcomes])
    return format_report(
        outcomes,
        command=command,
        machine=machine if ledger is None else ledger.describe_machines(source.list_runs(specs)),
        plots=draw_plots(outcomes, args.out.with_suffix("")) if args.out else {},
        goal=next((outcome for outcome in outcomes if outcome.spec == goal), None),
        dropped=dropped,
        missing=missing,
        seeds=args.seeds or (),
    )


def compare_budgets(args: argparse.Namespace, console: Console) -> str:
    """Returns the report on budgets of the thought; draws its plot."""
    from reason.bench.engine import describe_machine
    from reason.bench.runs import execute_runs, require_gold_answers, validate_runs
    from reason.bench.thinking_report import draw_budgets, format_budgets, plan_runs, summarize_budget

    runs = plan_runs(args.searches or ["self_consistency"], args.widths, args.think_tokens, common_settings(args))
    validate_runs(list(runs))
    require_gold_answers(next(iter(runs)))
    console.print(describe_length(runs=len(runs), problems=args.problems))
    outcomes = execute_runs(list(runs), args.folder, console)
    points = [summarize_budget(outcome, *runs[outcome.spec]) for outcome in outcomes]
    plot = args.out.with_suffix(".png") if args.out else None
    if plot:
        draw_budgets(points, plot)
    command, machine = typed.join_command("bench evaluate"), describe_machine()
    return format_budgets(points, command=command, machine=machine, num_problems=len(outcomes[0].rows), plot=plot)


def describe_this_machine() -> dict[str, object]:
    """Returns this machine as reports and the ledger have it; the load of a moment says little of hours."""
    from reason.bench.engine import describe_machine

    return {name: value for name, value in describe_machine().items() if name != "load"}


def common_settings(args: argparse.Namespace) -> tuple[str, ...]:
    """Returns the settings of all runs."""
    return (*DEFAULTS, *_task_settings(args), f"limit={args.problems}", *args.settings)


def _task_settings(args: argparse.Namespace) -> Sequence[str]:
    """Returns the bundled task if none is chosen, and the size that a generated task needs for `--problems`.

    A size that is large enough stays: another one would draw other problems.
    """
    chosen = [setting.removeprefix("+task=") for setting in args.settings if setting.startswith("+task=")]
    if not chosen:
        return ("+task=synthetic", f"task.size={args.problems}")
    if chosen[-1] not in list_options("task") or any(setting.startswith("task.size=") for setting in args.settings):
        return ()
    size = load_option("task", chosen[-1]).get("size", args.problems)  # data sets have none
    return (f"task.size={args.problems}",) if size < args.problems else ()


def compare(args: argparse.Namespace, console: Console) -> str:
    """Returns the report that the arguments ask for."""
    from reason.bench.plots import require_matplotlib

    if args.out:
        require_matplotlib()
    others = ("halving", "seeds", "write_front", "ledger", "reach", "baseline", "accept_older")
    values = [value for value in map(vars(args).get, others) if value is not None and value is not False]
    if args.think_tokens and values:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise ConfigError(f"--think-tokens compares budgets of one search: leave out {flags}")
    if args.accept_older and args.ledger is None:
        raise ConfigError("--accept-older reads runs of a ledger: add --ledger FILE")
    if args.report_only and (args.ledger is None or args.halving):
        raise ConfigError("--report-only reports on a ledger: add --ledger FILE, leave out --halving")
    return compare_budgets(args, console) if args.think_tokens else compare_searches(args, console)


def run_program() -> int:
    return run_comparison(make_parser(), compare)
