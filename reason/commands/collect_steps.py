"""Records the steps of a small and a target model after the same prefixes, for `reason train-router`.

reason collect-steps --out pairs.jsonl                       the bundled pair on training problems
reason collect-steps --out pairs.jsonl model=qwen2.5-math-7b small.path=Qwen/Qwen2.5-Math-1.5B-Instruct \\
    scorer=skywork_prm +task=math500

Takes the settings of `reason solve`. The search continues from the better step by the scorer. With --rollouts the
target model also completes the solution from each step, and the pair records the share of right answers. With a file
that exists it solves the problems that are not in it.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from reason.bench.arguments import positive_int
from reason.commands import typed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reason.settings.solve_spec import SolveSpec

DEFAULTS = ("router=oracle", "search=self_consistency", "search.n=4", "speculation=off")
BUNDLED = ("+task=synthetic_mixed", "task.split=train", "task.size=2000", "task.seed=1")


def validate_pair(settings: Sequence[str]) -> tuple[SolveSpec, Mapping[str, str]]:
    """Returns the checked settings of a run with two models, and its options by group. Raises: ConfigError."""
    from reason import ConfigError
    from reason.config.compose import compose_settings
    from reason.settings.validate import validate_settings

    bundled = () if any(setting.startswith("+task=") for setting in settings) else BUNDLED
    config, choices = compose_settings([*DEFAULTS, *bundled, *settings])
    spec = validate_settings(config, choices)
    if spec.routing is None:
        raise ConfigError("router=off has one model only; leave router out")
    return spec, choices


def record_pairs(
    spec: SolveSpec, choices: Mapping[str, str], file: Path, rollouts: int | None, console: Console
) -> None:
    """Records the pairs of the problems that are not in the file. *Mutates* the file. Raises: ValueError."""
    from reason.config.compose import instantiate
    from reason.routing.pairs import PairCollector, append_pairs, read_pairs
    from reason.routing.rollouts import add_rollout_truth
    from reason.tasks.selection import select_task

    task, _ = select_task(spec.config, choices, spec.scorer)
    done = {pair.group for pair in read_pairs(file)} if file.exists() else set()
    assert spec.routing is not None
    config, collector, count = spec.config, PairCollector(), 0
    sampling = instantiate("search.sampling", config["search"]["sampling"])
    problems = [problem for problem in list(task)[: config["limit"]] if problem.id not in done]
    spec = replace(spec, routing=replace(spec.routing, router=collector))
    with closing(task), spec.load_solver(task) as solver:
        solved = track(solver.solve_many(problems), "problems", total=len(problems), console=console)
        for problem, outcome in solved:
            if isinstance(outcome, Exception):
                console.print(f"{problem.id} failed: {outcome}", markup=False)
                continue
            pairs = collector.take_pairs(problem.id)
            if rollouts:
                pairs = add_rollout_truth(solver, task, problem, pairs, count=rollouts, sampling=sampling)
            append_pairs(file, pairs)
            count += len(pairs)
    console.print(f"{count:,} pairs of {len(problems):,} problems added to {file}", markup=False)


def run_program() -> int:
    top = typed.make_parser("collect-steps", __doc__)
    top.add_argument("settings", nargs="*", help="settings of `reason solve`")
    top.add_argument("--out", type=Path, required=True, help="file of pairs, appended to")
    top.add_argument("--rollouts", type=positive_int, help="graded completions of each step")
    args = top.parse_intermixed_args()
    logging.disable(logging.ERROR)  # transformers logs every setting that it does not like
    console = Console(stderr=True, highlight=False)
    from reason import ConfigError

    try:
        record_pairs(*validate_pair(args.settings), args.out, args.rollouts, console)
    except (ConfigError, ValueError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    return 0
