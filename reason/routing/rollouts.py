"""Measures how good a step is where answers can be checked: the share of continuations with the right answer.

After Math-Shepherd (arXiv 2312.08935, section 3.3), with the target model as the completer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from decoding.core import GenerationRequest, SamplingParams, TokenGenerator, Tokens
from reason.routing.pairs import StepPair
from search.seeds import derive_seed

if TYPE_CHECKING:
    from reason.problem import Problem
    from reason.solver import Solver
    from reason.tasks.base import Task


def add_rollout_truth(
    solver: Solver, task: Task, problem: Problem, pairs: Sequence[StepPair], *, count: int, sampling: SamplingParams
) -> list[StepPair]:
    """Returns the pairs of one problem with both truths, by the solver's target model and the task's grades; blocks."""
    truth = measure_truth(
        pairs,
        solver.engine,
        count=count,
        params=sampling,
        root_length=len(solver.prompt.encode(problem.question)),
        decode=solver.prompt.decode,
        is_correct=lambda text: task.grade_text(problem, text).is_correct is True,
        delimiter=solver.prompt.format.delimiter,
        seed=solver.seed,
    )
    return solver.run_coroutine(truth)


async def measure_truth(
    pairs: Sequence[StepPair],
    engine: TokenGenerator,
    *,
    count: int,
    params: SamplingParams,
    root_length: int,
    decode: Callable[[Tokens], str],
    is_correct: Callable[[str], bool],
    delimiter: str,
    seed: int,
) -> list[StepPair]:
    """Returns the pairs with both truths: the share of `count` continuations by `engine` that end correctly.

    params       of whole solutions; `max_tokens` counts from each step's end
    root_length  tokens of the prompt, which is not part of a solution's text
    is_correct   judges a solution's text
    """
    prefixes = [prefix for pair in pairs for prefix in (pair.prefix + pair.small_step, pair.prefix + pair.target_step)]
    # A step without a delimiter at its end finished the solution; it is judged as it is.
    unfinished = [p for p in dict.fromkeys(prefixes) if decode(p[root_length:]).endswith(delimiter)]
    requests = [
        GenerationRequest(prefix=prefix, params=params, seed=derive_seed(seed, i, *prefix), group=pairs[0].group)
        for prefix in unfinished
        for i in range(count)
    ]
    generations = await engine.generate(requests)
    truths = {prefix: float(is_correct(decode(prefix[root_length:]))) for prefix in prefixes}
    for number, prefix in enumerate(unfinished):
        continuations = generations[number * count : (number + 1) * count]
        num_correct = sum(is_correct(decode(prefix[root_length:] + c.tokens)) for c in continuations)
        truths[prefix] = num_correct / count
    return [
        replace(
            pair,
            small_truth=truths[pair.prefix + pair.small_step],
            target_truth=truths[pair.prefix + pair.target_step],
        )
        for pair in pairs
    ]
