"""Loads a solver for settings, or loads one and solves one problem with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from decoding.validation import shorten
from reason.config.compose import compose_settings, resolve_settings
from reason.config.errors import ConfigError
from reason.config.functions import function_overrides
from reason.problem import Problem, Solution
from reason.runs.notebook import register_display
from reason.settings.validate import validate_settings
from reason.solver import Solver


def load(
    *overrides: str,
    scorer: Callable[..., Any] | None = None,
    engine: Callable[..., Any] | None = None,
    judge: Callable[..., Any] | None = None,
) -> Solver:
    """Returns a solver for the options and settings of the command line.

    Plain functions take the place of options, and settings of them stay settings:

    scorer  `score(question, steps)` returns a number from 0 to 1, or one for each step; as scorer=function
    engine  `write(messages, temperature=, max_tokens=, stop=, seed=)` returns the text of an answer; as engine=function
    judge   a function like `engine`, which is asked whether a solution is right; as scorer=judge scorer.model=small

    >>> import reason
    >>> question = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."
    >>> with reason.load("search.n=16", scorer=lambda question, steps: float("{15}" in steps[-1])) as solver:
    ...     solver.solve(question).answer
    '15'
    >>> reason.load("search=best_of_m")                                          # doctest: +ELLIPSIS
    Traceback (most recent call last):
    reason.config.errors.ConfigError: there is no search=best_of_m (did you mean best_of_n?); choose one of: ...

    Raises: ConfigError naming the setting.
    """
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(f"load takes settings as texts, load('search.n=4', ...), got {shorten(override)}")
    register_display()
    given = function_overrides(overrides, scorer=scorer, engine=engine, judge=judge)
    config, choices = compose_settings(given)
    for name in ("limit", "question", "resume", "log_to"):
        if config.get(name):
            raise ConfigError(f"{name} is a setting of the command `reason solve`: a solver gets its problems from you")
    return validate_settings(config, choices).load_solver()


def solve(question: str | Problem, *overrides: str, **functions: Callable[..., Any] | None) -> Solution:
    """Loads the models, solves one problem and frees them; for more than one, `load` a solver. Functions are as there.

    >>> import reason
    >>> question = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."
    >>> reason.solve(question, "search.n=16").answer
    '15'

    Raises: ConfigError naming the setting.
    """
    with load(*overrides, **functions) as solver:
        return solver.solve(question)


async def asolve(question: str | Problem, *overrides: str, **functions: Callable[..., Any] | None) -> Solution:
    """Awaits what `solve` returns; the models are loaded in another thread."""
    solver = await asyncio.to_thread(load, *overrides, **functions)
    try:
        return await solver.asolve(question)
    finally:
        await asyncio.to_thread(solver.close)


def from_config(cfg: object) -> Solver:
    """Returns a solver for a `DictConfig` composed of `conf/solve.yaml`. Raises: ConfigError naming the setting."""
    return validate_settings(resolve_settings(cfg), {}).load_solver()
