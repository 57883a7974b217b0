"""Compare searches at equal compute on the same problems, and write a report with plots.

python scripts/bench/evaluate.py                                 every search at widths 4, 16, 64; 200 bundled problems
python scripts/bench/evaluate.py --searches best_of_n rebase "mcts search.value=rollout" --widths 16 --problems 50
python scripts/bench/evaluate.py model=qwen2.5-math-1.5b +task=math500 --widths 16

Whatever has the form NAME=VALUE is a setting of scripts/solve.py, for all arms. Every arm is a resumable run in a
folder of its own: started again, the script goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from pathlib import Path

from rich.console import Console

from reason import ConfigError
from reason.bench.arguments import positive
from reason.config.compose import members

DEFAULTS = ("speculation=off",)  # at the load of this comparison plain decoding is about as fast, and steadier
BUNDLED = ("+task=synthetic", "task.size={problems}")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("settings", nargs="*", help="settings of scripts/solve.py, for all arms")
    top.add_argument("--searches", nargs="+", help="members of search, each with settings of its own; default: all")
    top.add_argument("--widths", nargs="+", type=positive, default=[4, 16, 64], help="values of search.n")
    top.add_argument("--problems", type=positive, default=200)
    top.add_argument("--folder", type=Path, default=Path("outputs/evaluate"), help="where the runs are kept")
    top.add_argument("--out", type=Path, help="write the report here, its plots beside it")
    return top


def main() -> int:
    args = parser().parse_intermixed_args()
    logging.disable(logging.ERROR)  # transformers announces every setting it does not like
    console = Console(stderr=True, highlight=False)
    from reason.bench.engine import machine
    from reason.bench.evaluation_report import draw_plots, report
    from reason.bench.plots import require_matplotlib
    from reason.bench.runs import Arm, check_arms, run_arm

    bundled = () if any(setting.startswith("+task=") for setting in args.settings) else BUNDLED
    common = [*DEFAULTS, *bundled, "limit={problems}", *args.settings]
    settings = tuple(setting.format(problems=args.problems) for setting in common)
    # self_consistency is best_of_n with another choice among the same samples: every comparison has it as a bar
    searches = args.searches or [name for name in members("search") if name != "self_consistency"]
    if "best_of_n" not in searches:
        searches = ["best_of_n", *searches]
    arms = [Arm(search, width, settings) for width in args.widths for search in searches]
    try:
        if args.out:
            require_matplotlib()
        check_arms(arms)
        outcomes = []
        for number, arm in enumerate(arms, 1):
            console.print(f"{number} of {len(arms)}: {arm.search}, width {arm.width}", style="bold", markup=False)
            outcomes.append(run_arm(arm, args.folder / arm.folder_name, console))
    except (ConfigError, ValueError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on where it was (runs are in {args.folder})", markup=False)
        return 130
    plots = draw_plots(outcomes, args.out.with_suffix("")) if args.out else {}
    text = report(outcomes, command=shlex.join(["python", *sys.argv]), machine=machine(), plots=plots)
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
