"""From a request's body to what is searched and how; whatever is wrong with it is found before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from decoding.validation import is_count
from reason.config.errors import refused, unknown_key
from reason.problem import Problem
from reason.scorers.none import NoScorer
from reason.serve.errors import ApiError
from reason.serve.presets import Preset
from reason.serve.schemas import Body
from reason.serve.settings import ServeSettings
from reason.solver import Solver
from search.strategy import Budget, Strategy

ELSEWHERE = ("max_tokens", "temperature", "top_p", "stop")
"""Sampling settings that are fields of the request itself; a knob has one home."""

LARGEST_ID = 2**31 - 1
"""Numbers about tokens end here; no vocabulary is larger."""


@dataclass(frozen=True)
class Asked:
    """What a request comes to. `timeout` is in seconds; `solver` has the strategy, seed and budget it wants."""

    preset: str
    problem: Problem
    solver: Solver
    timeout: float | None
    n: int
    stop: tuple[str, ...]
    stream: bool
    with_usage: bool


def asked(body: Body, problem: Problem, solver: Solver, preset: Preset, settings: ServeSettings) -> Asked:
    """The request, checked. Raises: ApiError 400 naming the field and what would be right."""
    strategy = altered(preset.strategy, body.search, body.sampling, largest=settings.largest)
    _check_needs(strategy, solver)
    width = getattr(strategy, "n", body.n)
    if body.n > width:
        raise invalid("n", f"n={body.n} asks for more solutions than the search has: search.n is {width}")
    if solver.window is not None and len(problem.prompt or ()) >= solver.window:
        raise ApiError(
            400,
            f"the prompt has {len(problem.prompt or ())} tokens; the model holds {solver.window} in all",
            param="prompt" if hasattr(body, "prompt") else "messages",
            code="context_length_exceeded",
        )
    budget = replace(
        preset.budget,
        tokens=_within("budget.tokens", body.budget.tokens, preset.budget.tokens),
        calls=_within("budget.calls", body.budget.calls, preset.budget.calls),
        forwards=_within("budget.forwards", body.budget.forwards, preset.budget.forwards),
    )
    return Asked(
        preset=preset.name,
        problem=problem,
        solver=solver.but(strategy=strategy, budget=budget, seed=body.seed),
        timeout=_within("timeout", body.timeout, settings.timeout),
        n=body.n,
        stop=tuple(body.stop or ()),
        stream=body.stream,
        with_usage=body.with_usage,
    )


def altered(strategy: Any, changes: Mapping[str, Any], sampling: Mapping[str, Any], *, largest: int) -> Strategy:
    """The strategy with these settings and sampling settings. Raises: ApiError 400 naming the setting.

    >>> from search.strategies.best_of_n import BestOfN
    >>> altered(BestOfN(n=16), {"n": 4}, {"temperature": 0.5}, largest=64).sampling.temperature
    0.5
    >>> altered(BestOfN(), {"widht": 4}, {}, largest=64)
    Traceback (most recent call last):
    reason.serve.errors.ApiError: there is no setting search.widht; search has: agg_strategy, n, sampling
    """
    knobs = [field.name for field in fields(strategy)]
    inner = changes.get("sampling", {})
    if not isinstance(inner, dict):
        raise invalid("search.sampling", f"search.sampling must be an object, got {inner!r}")
    _check_known("search", changes, knobs)
    _check_known("search.sampling", inner, [field.name for field in fields(strategy.sampling)])
    for key in ELSEWHERE:
        if key in inner:
            raise invalid(f"search.sampling.{key}", f"{key} is a field of the request itself, not of search.sampling")
    for key, value in changes.items():
        _check_size(f"search.{key}", value, largest)
    for key, value in inner.items():
        _check_size(f"search.sampling.{key}", value, LARGEST_ID)
    try:
        how = replace(strategy.sampling, **inner, **sampling)
        changed: Strategy = replace(strategy, **{**changes, "sampling": how})
    except (ValueError, TypeError) as error:
        message = refused("search", error, knobs)
        raise invalid(message.partition(" ")[0].rstrip(":"), message) from error
    return changed


def budget_until(budget: Budget, seconds: float | None) -> Budget:
    """The budget of a search that may still take so many seconds."""
    limits = [limit for limit in (budget.seconds, seconds) if limit is not None]
    return replace(budget, seconds=min(limits)) if limits else budget


def invalid(param: str, message: str) -> ApiError:
    """A value that is not right."""
    return ApiError(400, message, param=param, code="invalid_value")


def _check_size(param: str, value: Any, largest: int) -> None:
    if is_count(value) and value > largest:
        raise invalid(param, f"{param} may be at most {largest} on this server, got {value}")


def _check_known(where: str, given: Mapping[str, Any], known: list[str]) -> None:
    for key in given:
        if key not in known:
            param = f"{where}.{key}"
            raise ApiError(400, unknown_key(param, known), param=param, code="unknown_field")


def _check_needs(strategy: Strategy, solver: Solver) -> None:
    if strategy.needs_scorer and isinstance(solver.scorer, NoScorer):
        raise invalid("search.select", "search.select wants scores, and this server runs with scorer=none")
    if strategy.needs_embedder and solver.embedder is None:
        raise invalid(
            "search.merge",
            "search.merge compares steps, and no preset of this server does, so it has loaded no embedder",
        )


def _within(param: str, wanted: Any, allowed: Any) -> Any:
    """The smaller of two limits, where None is none. Raises: ApiError 400 if more is wanted than allowed."""
    if wanted is not None and allowed is not None and wanted > allowed:
        raise invalid(param, f"{param}={wanted} is more than this server allows ({allowed})")
    return allowed if wanted is None else wanted
