"""Every number among the settings has bounds, found by introspection; whatever is within them works."""

from __future__ import annotations

import inspect
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from decoding.core import MAX_TEMPERATURE, MIN_TEMPERATURE, SamplingParams
from decoding.sampler import processed_log_probs, sample_tokens
from decoding.sampling_batch import SamplingBatch
from decoding.validation import MAX_INT, MAX_VALUE
from reason import ConfigError
from reason.config.compose import compose_settings, instantiate, load_target
from reason.engines.speculation import validate_speculation
from reason.serve.errors import ApiError
from reason.serve.request import change_strategy
from reason.settings.validate import validate_settings
from reason.tasks.synthetic import Synthetic
from reason.training.loop import TrainingRecipe
from reason.training.router import RouterRecipe
from reason.training.router_head import HeadRecipe
from reason.training.stages import ModelShape
from search.strategy import Budget
from tests.support.searches import option_names
from tests.support.toy_search import run_search

HOSTILE: tuple[Any, ...] = (
    -1e308,
    -1,
    0,
    5e-324,
    1e-300,
    1e308,
    2**63,
    2**1000,
    math.nan,
    math.inf,
    -math.inf,
    True,
    "x",
    [],
    {},
    None,
)
ACCEPTED = (5e-324, 0.5, 10, 60, MAX_TEMPERATURE, MAX_VALUE)
"""Values that some knobs accept, their bounds among them."""

GROUPS = {
    "search": option_names("search"),
    "embedder": ["hidden_states", "words"],
    "engine": option_names("engine"),
    "scorer": option_names("scorer"),
    "router": option_names("router"),
    "controller": option_names("controller"),
}
OVERRIDES = {"engine": ["search=self_consistency", "scorer=none"]}
OPTIONS = [(group, name) for group, names in GROUPS.items() for name in names]
NOT_SETTINGS = {"feedback_k"}


def is_number(annotation: object) -> bool:
    """Whether an annotation, a text here, is an int or a float, perhaps with None."""
    return bool(re.fullmatch(r"(int|float)( \| None)?", str(annotation)))


def find_knobs(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all numbers below a node: those of its class's parameters, and those that the yaml has."""
    parameters = inspect.signature(load_target(node)).parameters if "_target_" in node else {}
    numbers = [name for name, parameter in parameters.items() if is_number(parameter.annotation)]
    for name in numbers:
        if name not in NOT_SETTINGS:
            yield *path, name
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from find_knobs(value, (*path, name))
        elif isinstance(value, int | float) and not isinstance(value, bool) and name not in numbers:
            yield *path, name


def changed(node: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    """The node with another value at the path."""
    head, *rest = path
    return {**node, head: changed(node[head], tuple(rest), value) if rest else value}


def load_node(group: str, name: str) -> dict[str, Any]:
    node: dict[str, Any] = compose_settings(
        [
            f"{group}={name}",
            *OVERRIDES.get(group, []),
            *(["embedder.path=x"] if name == "sentence_transformers" else []),
        ]
    )[0][group]
    return node


def assert_refused_by_name(error: ValueError, path: tuple[str, ...]) -> None:
    assert path[-1] in str(error), f"{error} does not name {path}"
    assert len(str(error)) < 300, "it is one sentence"


@pytest.mark.parametrize(("group", "name"), OPTIONS, ids=str)
def test_every_number_of_an_option_is_accepted_or_refused_by_name(group: str, name: str) -> None:
    node = load_node(group, name)
    for path in find_knobs(node):
        for value in HOSTILE:
            try:
                instantiate(group, changed(node, path, value))
            except ConfigError as error:
                assert_refused_by_name(error, path)
            else:
                assert value is None or (isinstance(value, int | float) and abs(value) <= 1e9), (path, value)


@pytest.mark.parametrize("name", option_names("speculation"))
def test_every_number_of_a_drafter_is_accepted_or_refused_by_name_without_its_model(name: str) -> None:
    config = compose_settings([f"speculation={name}"])[0]
    node = config["speculation"]
    paths = [path for path in find_knobs(node) if "sources" not in path]
    assert paths or name == "off"
    for path in paths:
        for value in HOSTILE:
            try:
                validate_speculation(config | {"speculation": changed(node, path, value)})
            except ConfigError as error:
                assert_refused_by_name(error, path)
            else:
                assert value is None or abs(value) <= 1e9, (path, value)


TOP = ("seed", "limit", "concurrency", "scorer_timeout", "budget.tokens", "budget.seconds", "budget.calls")


@pytest.mark.parametrize("key", [*TOP, "budget.forwards"])
def test_every_number_of_a_run_is_accepted_or_refused_by_name(key: str) -> None:
    config, choices = compose_settings(["speculation=off", "search=self_consistency", "scorer=none"])
    for value in HOSTILE:
        try:
            validate_settings(changed(config, tuple(key.split(".")), value), choices)
        except ConfigError as error:
            assert_refused_by_name(error, (key,))
        else:
            assert value in (None, 0, 5e-324, 1e-300), value


@pytest.mark.parametrize("key", ["limit", "offset", "shuffle_seed", "size", "seed", "difficulty"])
def test_every_number_of_a_task_is_accepted_or_refused_by_name(key: str) -> None:
    knobs: dict[str, Any] = {"families": ["recurrence"], "difficulty": 1, "size": 2}
    for value in HOSTILE:
        try:
            Synthetic(**knobs | {key: value})
        except ValueError as error:
            assert_refused_by_name(error, (f"task.{key}",))
        else:
            assert value in (None, 0, -1), value


def test_task_of_more_problems_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task.size must be at most \d+, the number of different problems"):
        Synthetic(families=["residues"], difficulty=1, size=1_000_000)


@pytest.mark.parametrize("name", option_names("search"))
def test_search_with_any_accepted_number_ends_and_raises_nothing(name: str) -> None:
    """The budget is one of calls: a width of a million is allowed, and takes its time."""
    node = load_node("search", name)
    solved = 0
    for path in find_knobs(node):
        for value in ACCEPTED:
            try:
                strategy = instantiate("search", changed(node, path, value))
            except ConfigError:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                run_search(strategy, budget=Budget(calls=20))
            solved += 1
    assert solved > 4


@pytest.mark.parametrize("name", option_names("search"))
def test_every_number_of_a_request_is_accepted_or_refused_by_name(name: str) -> None:
    node = load_node("search", name)
    strategy = instantiate("search", node)
    for *parent, knob in find_knobs(node):
        for value in (*HOSTILE, 10**6):
            if value is None:
                continue
            changes = {"sampling": {knob: value}} if parent else {knob: value}
            param = ".".join(["search", *parent, knob])
            try:
                change_strategy(strategy, changes, {}, largest=1024)
            except ApiError as error:
                refusal = error
            else:
                assert abs(value) <= 10**6, (param, value)
                continue
            assert (refusal.status, refusal.json_body["error"]["param"]) == (400, param), refusal
            assert knob in refusal.message


@pytest.mark.parametrize("temperature", [0, MIN_TEMPERATURE, MAX_TEMPERATURE])
@pytest.mark.parametrize("filters", [{}, {"top_p": 5e-324}, {"min_p": 1.0}, {"min_p": 5e-324}, {"top_k": 2**31 - 1}])
def test_sampler_takes_every_accepted_temperature(temperature: float, filters: dict[str, Any]) -> None:
    params = SamplingParams(temperature=temperature, **filters)
    rows = SamplingBatch.from_params([params] * 2, [1, 2], [0, 0])
    logits = torch.tensor([[0.0, 30.0, -30.0], [-100.0, 0.0, 100.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(sample_tokens(logits, rows).tolist()) <= {0, 1, 2}
        assert np.isfinite(processed_log_probs(logits, rows).exp().numpy()).all()


@pytest.mark.parametrize("temperature", [1e-6, 5e-324, 100.1, 1e300, math.nan, math.inf, -1, True, "1", None])
def test_sampling_temperature_outside_its_range_is_refused(temperature: Any) -> None:
    with pytest.raises(ValueError, match=r"temperature must be 0 or in \[1e-05, 100.0\], got "):
        SamplingParams(temperature=temperature)


@pytest.mark.parametrize("field", ["stop", "stop_token_ids"])
@pytest.mark.parametrize("value", ["text", 3, None, {"a": 1}, [3.5], [True], [""], [-1], [2**31], ["x"] * 1025])
def test_stops_are_short_lists_of_texts_and_of_ids(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field}.* must "):
        SamplingParams(**{field: value})


def test_limits_are_ones_that_files_and_sockets_take() -> None:
    assert json.loads(json.dumps(MAX_INT)) == np.int64(MAX_INT)
    assert MAX_VALUE * 1000 < 2**31


@pytest.mark.parametrize("recipe", [TrainingRecipe, ModelShape, RouterRecipe, HeadRecipe])
def test_every_number_of_a_training_recipe_is_accepted_or_refused_by_name(recipe: type) -> None:
    needed = {"tokens": 1, "hidden": 1, "layers": 1, "mlp": 1, "heads": 1}
    parameters = inspect.signature(recipe).parameters
    valid = {name: value for name, value in needed.items() if name in parameters}
    for name in (name for name, parameter in parameters.items() if is_number(parameter.annotation)):
        for value in HOSTILE:
            try:
                recipe(**valid | {name: value})
            except ValueError as error:
                assert_refused_by_name(error, (name,))
            else:
                assert value is None or abs(value) <= 1, (name, value)
