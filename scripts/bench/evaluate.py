"""Compare searches at equal compute on the same problems, and write a report with plots.

python scripts/bench/evaluate.py                                 every search at widths 4, 16, 64; 200 bundled problems
python scripts/bench/evaluate.py --searches best_of_n rebase "mcts search.value=rollout" --widths 16 --problems 50
python scripts/bench/evaluate.py model=qwen2.5-math-1.5b +task=math500 --widths 16

Arguments of the form NAME=VALUE are settings of scripts/solve.py, for all runs. Every run is resumable and has its own
folder: the same command continues a stopped comparison.
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
from reason.config.compose import list_options
from reason.runs.output_folder import OutputError

DEFAULTS = ("speculation=off",)  # at the load of this comparison plain decoding is about as fast, and steadier
BUNDLED = ("+task=synthetic", "task.size={problems}")


def make_parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("settings", nargs="*", help="settings of scripts/solve.py, for all runs")
    top.add_argument("--searches", nargs="+", help="options of search, each with its own settings; default: all")
    top.add_argument("--widths", nargs="+", type=positive_int, default=[4, 16, 64], help="values of search.n")
    top.add_argument("--problems", type=positive_int, default=200)
    top.add_argument("--folder", type=Path, default=Path("outputs/evaluate"), help="where the runs are kept")
    top.add_argument("--out", type=Path, help="write the report here, its plots beside it")
    return top


def main() -> int:
    args = make_parser().parse_intermixed_args()
    logging.disable(logging.ERROR)  # transformers logs every setting that it ignores
    console = Console(stderr=True, highlight=False)
    from reason.bench.engine import describe_machine
    from reason.bench.evaluation_report import draw_plots, format_report
    from reason.bench.plots import require_matplotlib
    from reason.bench.runs import RunSpec, execute_run, validate_runs

    bundled = () if any(setting.startswith("+task=") for setting in args.settings) else BUNDLED
    common = [*DEFAULTS, *bundled, "limit={problems}", *args.settings]
    settings = tuple(setting.format(problems=args.problems) for setting in common)
    # self_consistency chooses differently among the samples of best_of_n: it is a baseline of every comparison
    searches = args.searches or [name for name in list_options("search") if name != "self_consistency"]
    if "best_of_n" not in searches:
        searches = ["best_of_n", *searches]
    specs = [RunSpec(search, width, settings) for width in args.widths for search in searches]
    try:
        if args.out:
            require_matplotlib()
        validate_runs(specs)
        outcomes = []
        for number, spec in enumerate(specs, 1):
            console.print(f"{number} of {len(specs)}: {spec.search}, width {spec.width}", style="bold", markup=False)
            outcomes.append(execute_run(spec, args.folder / spec.folder_name, console))
    except (ConfigError, ValueError, OutputError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print(f"stopped; the same command continues (runs are in {args.folder})", markup=False)
        return 130
    plots = draw_plots(outcomes, args.out.with_suffix("")) if args.out else {}
    text = format_report(outcomes, command=shlex.join(["python", *sys.argv]), machine=describe_machine(), plots=plots)
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
