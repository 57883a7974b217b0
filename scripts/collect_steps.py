"""Record what a small and a large model would write from the same places, for scripts/train_router.py.

python scripts/collect_steps.py --out pairs.jsonl                       the bundled pair on training problems
python scripts/collect_steps.py --out pairs.jsonl model=qwen2.5-math-7b draft.path=Qwen/Qwen2.5-Math-1.5B-Instruct \\
    scorer=skywork_prm +task=math500

Takes the settings of scripts/solve.py. The better step is followed, by the scorer. With --rollouts the large model also
finishes what each step began, and the pair says how often that came out right. Started again with the same file, it
does the problems that are not in it.
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track

from reason.bench.arguments import positive

if TYPE_CHECKING:
    from reason.problem import Problem
    from reason.routing.pairs import Pair
    from reason.solver import Solver
    from reason.tasks.base import Task

DEFAULTS = ("router=oracle", "search=self_consistency", "search.n=4", "speculation=off")
BUNDLED = ("+task=synthetic_mixed", "task.split=train", "task.size=2000", "task.seed=1")


def judged(solver: Solver, task: Task, problem: Problem, pairs: list[Pair], rollouts: int, sampling: Any) -> list[Pair]:
    """The pairs with their ground truth."""
    from reason.routing.engine import Arbitrage
    from reason.routing.rollouts import with_truth

    assert isinstance(solver.engine, Arbitrage)
    truth = with_truth(
        pairs,
        solver.engine.target,
        count=rollouts,
        params=sampling,
        root=len(solver.prompt.encode(problem.question)),
        decode=solver.prompt.decode,
        right=lambda text: task.grade_text(problem, text).right is True,
        delimiter=solver.prompt.form.delimiter,
        seed=solver.seed,
    )
    return solver.run(truth)


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("settings", nargs="*", help="settings of scripts/solve.py")
    top.add_argument("--out", type=Path, required=True, help="the file of pairs, added to")
    top.add_argument("--rollouts", type=positive, help="solutions begun with each step that are finished and graded")
    args = top.parse_intermixed_args()
    logging.disable(logging.ERROR)  # transformers announces every setting it does not like
    console = Console(stderr=True, highlight=False)
    from reason import ConfigError, build
    from reason.config.compose import composed, make
    from reason.routing.pairs import Collector, append_pairs, read_pairs

    bundled = () if any(setting.startswith("+task=") for setting in args.settings) else BUNDLED
    try:
        config, choices = composed([*DEFAULTS, *bundled, *args.settings])
        plan = build.check(config, choices)
        if plan.routing is None:
            raise ConfigError("router=off has one model only; leave router out")
        task, _ = build.task_of(plan, choices)
        done = {pair.group for pair in read_pairs(args.out)} if args.out.exists() else set()
    except (ConfigError, ValueError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    collector, count = Collector(), 0
    sampling = make("search.sampling", config["search"]["sampling"])
    problems = [problem for problem in list(task)[: config["limit"]] if problem.id not in done]
    plan = replace(plan, routing=replace(plan.routing, router=collector))
    with closing(task), plan.open(task) as solver:
        solved = track(solver.solve_many(problems), "problems", total=len(problems), console=console)
        for problem, outcome in solved:
            if isinstance(outcome, Exception):
                console.print(f"{problem.id} failed: {outcome}", markup=False)
                continue
            pairs = collector.take(problem.id)
            if args.rollouts:
                pairs = judged(solver, task, problem, pairs, args.rollouts, sampling)
            append_pairs(args.out, pairs)
            count += len(pairs)
    console.print(f"{count:,} pairs of {len(problems):,} problems added to {args.out}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
