"""Validates a request and converts it into a search: problem, strategy and budget, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

from decoding.validation import is_count
from reason.config.errors import rejected_setting, unknown_key
from reason.engines.base import EngineSettings
from reason.problem import Problem
from reason.scorers.base import ComparingScorer
from reason.serve.errors import ApiError
from reason.serve.presets import Preset
from reason.serve.reply_format import ReplyFormat
from reason.serve.schemas import ChatCompletionRequest, CompletionRequest
from reason.serve.settings import ServeSettings
from reason.solver import Solver
from search.strategy import Budget, Strategy
from search.voting import TOURNAMENT

REQUEST_FIELDS = ("max_tokens", "temperature", "top_p", "stop")
"""Sampling settings that are fields of the request itself and therefore not of `search.sampling`."""

Limit = TypeVar("Limit", bound=float)


@dataclass(frozen=True)
class SearchRequest:
    """A validated request. `timeout` is in seconds; `solver` has the requested strategy, seed and budget.

    width   solutions, branches or simulations of its search
    n       solutions that it returns
    is_live  whether its stream has the text while it is written
    """

    preset: str
    problem: Problem
    solver: Solver
    timeout: float | None
    width: int
    n: int
    stop: tuple[str, ...]
    stream: bool
    with_usage: bool
    reply_format: ReplyFormat | None = None
    with_logprobs: bool = False
    is_live: bool = False


def validate_request(
    body: CompletionRequest,
    problem: Problem,
    solver: Solver,
    preset: Preset,
    settings: ServeSettings,
    *,
    engine: EngineSettings,
    reply_format: ReplyFormat | None = None,
) -> SearchRequest:
    """Validates the values of a request. `engine` are the settings of the solver's engine.

    Raises: ApiError 400 naming the field and the valid values."""
    strategy = change_strategy(preset.strategy, body.search, body.sampling_settings, largest=settings.largest)
    if solver.thinking is not None and isinstance(body, ChatCompletionRequest):
        strategy = _keep_stop(strategy, preset.strategy)
    _check_needs(strategy, solver)
    if body.with_logprobs:
        _check_logprobs(body, solver, engine)
        problem = replace(problem, num_alternatives=body.num_alternatives)
    if reply_format is not None:
        problem = _ask_for(reply_format, problem, solver, strategy, engine)
    width = getattr(strategy, "n", body.n)
    if body.n > width:
        raise invalid_value("n", f"n={body.n} is more solutions than the search has: search.n is {width}")
    if solver.context_window is not None and len(problem.prompt or ()) >= solver.context_window:
        raise ApiError(
            400,
            f"the prompt has {len(problem.prompt or ())} tokens; the model holds {solver.context_window} in all",
            param="prompt" if hasattr(body, "prompt") else "messages",
            code="context_length_exceeded",
        )
    budget = replace(
        preset.budget,
        tokens=_smaller_limit("budget.tokens", body.budget.tokens, preset.budget.tokens),
        calls=_smaller_limit("budget.calls", body.budget.calls, preset.budget.calls),
        forwards=_smaller_limit("budget.forwards", body.budget.forwards, preset.budget.forwards),
    )
    return SearchRequest(
        preset=preset.name,
        problem=problem,
        solver=solver.with_options(strategy=strategy, budget=budget, seed=body.seed),
        timeout=_smaller_limit("timeout", body.timeout, settings.timeout),
        width=width,
        n=body.n,
        stop=tuple(body.stop or ()),
        stream=body.stream,
        with_usage=body.with_usage,
        reply_format=reply_format,
        with_logprobs=body.with_logprobs,
        is_live=body.stream and reply_format is None and _writes_straight_on(body, solver, strategy, engine),
    )


def change_strategy(
    strategy: Any,  # a dataclass with the field `sampling`, which the protocol `Strategy` does not say
    changes: Mapping[str, object],
    sampling: Mapping[str, object],
    *,
    largest: int,
) -> Strategy:
    """Returns the strategy with these settings and sampling settings. Raises: ApiError 400 naming the setting.

    >>> from search.strategies.best_of_n import BestOfN
    >>> change_strategy(BestOfN(n=16), {"n": 4}, {"temperature": 0.5}, largest=64).sampling.temperature
    0.5
    >>> change_strategy(BestOfN(), {"widht": 4}, {}, largest=64)                 # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    reason.serve.errors.ApiError: there is no setting search.widht; search has: agg_strategy, drop_percentile,
        drop_window, n, sampling, unscored, warm_up
    """
    names = [field.name for field in fields(strategy)]
    sampling_changes = changes.get("sampling", {})
    if not isinstance(sampling_changes, dict):
        raise invalid_value("search.sampling", f"search.sampling must be an object, got {sampling_changes!r}")
    _check_known("search", changes, names)
    _check_known("search.sampling", sampling_changes, [field.name for field in fields(strategy.sampling)])
    for key in REQUEST_FIELDS:
        if key in sampling_changes:
            raise invalid_value(
                f"search.sampling.{key}", f"{key} is a field of the request itself, not of search.sampling"
            )
    for key, value in changes.items():
        _check_size(f"search.{key}", value, largest)
    new_sampling = _replace_fields("search.sampling", strategy.sampling, {**sampling_changes, **sampling})
    changed: Strategy = _replace_fields("search", strategy, {**changes, "sampling": new_sampling})
    return changed


def _keep_stop(strategy: Any, preset: Any) -> Strategy:
    """Returns the strategy with the stop strings of its preset: those of a chat cut its text, and no thought."""
    changed: Strategy = replace(strategy, sampling=replace(strategy.sampling, stop=preset.sampling.stop))
    return changed


def _ask_for(
    reply_format: ReplyFormat, problem: Problem, solver: Solver, strategy: Strategy, engine: EngineSettings
) -> Problem:
    """Returns the problem whose votes are those of a reply in this form. Raises: ApiError 400 for a wrong search."""
    if getattr(strategy, "writes_prompts", False):
        message = f"this search writes prompts of its own, which {reply_format.param} does not reach"
        raise invalid_value("model", message)
    if strategy.by_steps and solver.prompt.is_rendered_by_server:
        raise invalid_value(
            "model", f"{reply_format.param} needs a search over whole solutions with this engine, such as majority-16"
        )
    # a constraint holds from the first token on: nothing may be written before or put in between
    is_in_one_go = not strategy.by_steps and getattr(strategy, "drop_percentile", None) is None
    writes_alone = solver.thinking is None and solver.router is None
    can_constrain = engine.constrains_json and is_in_one_go and writes_alone
    schema = reply_format.json_schema if can_constrain and reply_format.tools is None else None
    return replace(
        problem,
        read_answer=partial(reply_format.read_answer, find_answer=solver.extract_answer),
        json_schema=None if schema is None or solver.prompt.is_rendered_by_server else schema.text,
    )


def _writes_straight_on(body: CompletionRequest, solver: Solver, strategy: Strategy, engine: EngineSettings) -> bool:
    """Returns whether a search writes one solution from its beginning to its end, of which nothing is taken back."""
    thinking = solver.thinking
    return (
        engine.tells_tokens
        and getattr(strategy, "n", None) == 1
        and not strategy.by_steps
        and not getattr(strategy, "writes_prompts", False)
        and solver.router is None
        and solver.early_exit is None
        # the end of a thought that is to go on is taken back
        and (thinking is None or not thinking.waits)
        # log-probabilities are of whole texts, and texts of `/v1/completions` have their thoughts in them
        and not body.with_logprobs
        and (thinking is None or isinstance(body, ChatCompletionRequest))
    )


def _check_logprobs(body: CompletionRequest, solver: Solver, engine: EngineSettings) -> None:
    """Raises ApiError 400 naming the field that this engine has nothing for."""
    if not engine.gives_logprobs:
        raise ApiError(
            400,
            "logprobs is not supported: this engine reports none (engine=openai does with engine.logprobs=true)",
            param="logprobs",
            code="unsupported_field",
        )
    if body.num_alternatives and (not engine.names_tokens or solver.router is not None):
        field = "top_logprobs" if isinstance(body, ChatCompletionRequest) else "logprobs"
        reason = (
            "this engine does not say which other tokens were likely (engine=local does)"
            if solver.router is None
            else "with a router two models write, and the likely tokens of neither are kept"
        )
        raise ApiError(400, f"{field} is not supported above 0: {reason}", param=field, code="unsupported_field")


def limit_seconds(budget: Budget, seconds: float | None) -> Budget:
    """Returns the budget with its time limit lowered to `seconds`; None leaves it as it is."""
    limits = [limit for limit in (budget.seconds, seconds) if limit is not None]
    return replace(budget, seconds=min(limits)) if limits else budget


def invalid_value(param: str, message: str) -> ApiError:
    """Returns the error of a field with a wrong value."""
    return ApiError(400, message, param=param, code="invalid_value")


def _replace_fields(key: str, settings: Any, changes: Mapping[str, object]) -> Any:
    """Returns the settings, a dataclass, with these changes. Raises: ApiError 400 naming the field."""
    try:
        return replace(settings, **changes)
    except (ValueError, TypeError) as error:
        message = rejected_setting(key, error, [field.name for field in fields(settings)])
        sampling = message.removeprefix("search.sampling.")
        if sampling.startswith(REQUEST_FIELDS):
            message = sampling
        raise invalid_value(message.partition(" ")[0].rstrip(":"), message) from error


def _check_size(param: str, value: object, largest: int) -> None:
    if isinstance(value, int) and is_count(value, at_least=largest + 1):
        raise invalid_value(param, f"{param} may be at most {largest} on this server, got {value}")


def _check_known(where: str, given: Mapping[str, object], known: list[str]) -> None:
    for key in given:
        if key not in known:
            param = f"{where}.{key}"
            raise ApiError(400, unknown_key(param, known), param=param, code="unknown_field")


def _check_needs(strategy: Strategy, solver: Solver) -> None:
    if strategy.needs_scorer and not solver.scorer.gives_scores:
        raise invalid_value("search.select", "search.select needs scores, and this server runs with scorer=none")
    if strategy.select == TOURNAMENT and not (isinstance(solver.scorer, ComparingScorer) and solver.scorer.tournament):
        raise invalid_value("search.select", f"search.select={TOURNAMENT} needs a judge, and this server has none")
    if strategy.needs_embedder and solver.embedder is None:
        raise invalid_value(
            "search.merge",
            "search.merge compares steps, and this server has loaded no embedder: none of its presets needs one",
        )


def _smaller_limit(param: str, requested: Limit | None, allowed: Limit | None) -> Limit | None:
    """Returns the smaller of two limits; None is no limit. Raises: ApiError 400 if more is requested than allowed."""
    if requested is not None and allowed is not None and requested > allowed:
        raise invalid_value(param, f"{param}={requested} is more than this server allows ({allowed})")
    return allowed if requested is None else requested
