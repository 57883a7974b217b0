"""Draw pairs of settings at random and check that speculation and other searches beside it change no search.

python scripts/dev/fuzz_equality.py --cases 200                 in float32, where sums depend on the batch
python scripts/dev/fuzz_equality.py --seed 0 --case 17          one case again, with all its settings

A case is one search with its knobs, scorer, router, sampling and limits. Two problems are solved without speculation,
one after the other: the reference. Then they are solved again beside a third one, without and with speculation. Trees,
decisions, candidates and answers must be equal. Scores, votes and log-probabilities must be equal up to 0.01 %
or 0.000001; the last line says how many scores and votes are not the same number.

Prints a row per case that differs, and exits with 1 if any does.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from random_settings import DrawnSettings, draw_settings
from rich.console import Console
from rich.progress import track

from reason.bench.arguments import positive_int
from reason.problem import Solution
from reason.runs.tables import format_markdown
from reason.settings.solve_spec import SolveSpec
from reason.solver import Solver
from reason.tasks.selection import select_task

NUM_COMPARED = 2  # problems of a case; the others run beside them
SMALLEST = 1e-6  # the last decimal in result rows
TOLERANCE = 1.1e-4  # relative, of scores; absolute, of log-probabilities: one in the last place of `Step.mean_logprob`


@dataclass
class Comparison:
    """What differs between a search and its reference, and how many scores and votes are not the same number."""

    differences: list[str] = field(default_factory=list)
    num_scores: int = 0
    num_unequal_scores: int = 0

    def compare(self, name: str, expected: object, actual: object) -> None:
        """Records a difference between two values that must be equal. *Mutates*."""
        if expected != actual:
            self.differences.append(name)

    def compare_scores(
        self,
        name: str,
        expected: Sequence[float | None],
        actual: Sequence[float | None],
        *,
        steps: int = 1,
        smallest: float = SMALLEST,
    ) -> None:
        """Records a difference if two lists of numbers made of the scores of `steps` steps are not equal. *Mutates*.

        smallest  difference that counts
        """
        self.compare(f"which {name}", [x is None for x in expected], [x is None for x in actual])
        pairs = [(x, y) for x, y in zip(expected, actual, strict=False) if x is not None and y is not None]
        self.num_scores += len(pairs)
        self.num_unequal_scores += sum(x != y for x, y in pairs)
        if not all(math.isclose(x, y, rel_tol=steps * TOLERANCE, abs_tol=smallest) for x, y in pairs):
            self.differences.append(name)


def compare_solutions(expected: Solution, actual: Solution) -> Comparison:
    """Compares two searches of one problem."""
    it = Comparison()
    a, b = expected.result, actual.result
    for name in ("parent", "depth", "finish"):
        it.compare(name, [getattr(node, name) for node in a.tree.nodes], [getattr(node, name) for node in b.tree.nodes])
    for name in ("tokens", "text", "model"):
        it.compare(name, *([getattr(node.step, name) for node in tree.nodes] for tree in (a.tree, b.tree)))
    it.compare("selections", a.selections, b.selections)
    it.compare("candidates", *([(c.node, c.answer) for c in result.candidates] for result in (a, b)))
    it.compare("answer", (expected.answer, a.best, a.stop_reason), (actual.answer, b.best, b.stop_reason))
    it.compare("answers with votes", list(a.votes), list(b.votes))
    if it.differences:  # numbers of other trees mean nothing
        return it
    it.compare_scores("scores", [node.score for node in a.tree.nodes], [node.score for node in b.tree.nodes])
    # A path's score is a sum or product of at most `depth` scores, a vote one of all candidates.
    depth = max((node.depth for node in a.tree.nodes), default=0)
    it.compare_scores("path scores", [c.score for c in a.candidates], [c.score for c in b.candidates], steps=depth)
    it.compare_scores("votes", list(a.votes.values()), list(b.votes.values()), steps=depth)
    a_steps, b_steps = ([node.step for node in tree.nodes] for tree in (a.tree, b.tree))
    routing = ([step.routing_score for step in steps] for steps in (a_steps, b_steps))
    it.compare_scores("routing scores", *routing, smallest=TOLERANCE)  # differences of two scores
    logprobs = zip(*([x for node in tree.nodes for x in node.step.logprobs] for tree in (a.tree, b.tree)), strict=True)
    if any(abs(x - y) > TOLERANCE for x, y in logprobs):
        it.differences.append("log-probabilities")
    return it


class OpenModels:
    """The solvers of a case without and with speculation; those of its neighbours, where the settings are the same."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._solvers: dict[tuple[str, ...], Solver] = {}

    def get_solver(self, spec: SolveSpec, drawn: DrawnSettings, *, speculates: bool) -> Solver:
        """Returns the solver for a case; loads the models if no earlier case has them. *Mutates*."""
        key = (*drawn.models, *(drawn.speculation if speculates else ()))
        if not {drawn.models, (*drawn.models, *drawn.speculation)} >= self._solvers.keys():  # those of other cases
            self.close()
        if key not in self._solvers:
            # ETS needs all that any search may need
            whole = replace(drawn, search=("search=ets",)).build_spec(speculates=speculates)
            self._solvers[key] = self._stack.enter_context(whole.load_solver())
        solver = self._solvers[key]
        return solver.with_options(strategy=spec.strategy, budget=spec.budget, seed=spec.config["seed"])

    def close(self) -> None:
        """Frees all models. *Mutates*."""
        self._stack.close()
        self._solvers.clear()


def run_case(drawn: DrawnSettings, models: OpenModels) -> Iterator[tuple[str, Comparison]]:
    """Solves the problems of a case in all ways; yields how, and the comparison with the reference."""
    plain, drafting = (drawn.build_spec(speculates=speculates) for speculates in (False, True))
    task, _ = select_task(plain.config, {}, plain.scorer)
    problems = list(task)
    solver = models.get_solver(plain, drawn, speculates=False)
    expected = [solver.solve(problem) for problem in problems[:NUM_COMPARED]]
    others = models.get_solver(drafting, drawn, speculates=True)
    for how, other in (("off, beside others", solver), ("on, beside others", others)):
        outcomes = {problem.id: outcome for problem, outcome in other.solve_many(problems)}
        for reference in expected:
            outcome = outcomes[reference.problem.id]
            if isinstance(outcome, Exception):
                raise outcome
            yield how, compare_solutions(reference, outcome)


def make_parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--cases", type=positive_int, default=200)
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--first", type=int, default=0, help="number of the first case")
    top.add_argument("--case", type=int, help="only this case; its settings are printed")
    top.add_argument(
        "--dtype",
        choices=("float32", "float64", "bfloat16"),
        default="float32",
        help="of engines and routers; bfloat16 on a CPU with AMX or AVX512_BF16 alone, where it runs compiled",
    )
    return top


def main() -> int:
    args = make_parser().parse_args()
    logging.disable(logging.ERROR)  # transformers logs every setting that it ignores
    numbers = range(args.first, args.first + args.cases) if args.case is None else [args.case]
    models, rows, searches, scores, unequal = OpenModels(), [], 0, 0, 0
    console = Console(stderr=True, highlight=False)
    try:
        for done, number in enumerate(track(numbers, "cases", console=console)):
            if not console.is_terminal and done % 10 == 0:
                console.print(f"{done} of {len(numbers)} cases", markup=False)
            drawn = draw_settings(args.seed, number, args.dtype)
            if args.case is not None:
                console.print(*drawn.search, *drawn.models, "|", *drawn.speculation, markup=False)
            differences = []
            for how, comparison in run_case(drawn, models):
                searches, scores = searches + 1, scores + comparison.num_scores
                unequal += comparison.num_unequal_scores
                if comparison.differences:
                    differences.append(f"{how}: {', '.join(comparison.differences)}")
            if differences:
                rows.append(
                    [str(number), "; ".join(differences), " ".join((*drawn.search, *drawn.models, *drawn.speculation))]
                )
                console.print(f"case {number} differs: {rows[-1][1]}", markup=False)
    finally:
        models.close()
    if rows:
        print(format_markdown(["case", "what differs", "settings"], rows))
    print(
        f"{len(numbers)} cases of seed {args.seed} in {args.dtype}, {searches} searches compared: {len(rows)} cases "
        f"differ; {unequal} of {scores} scores and votes differ by rounding"
    )
    return 1 if rows else 0


if __name__ == "__main__":
    sys.exit(main())
