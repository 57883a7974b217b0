"""Every yaml of `conf/` composes, and every strategy fulfils the contract of strategies on a toy problem."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from typing import Any

import pytest
from omegaconf import OmegaConf

from reason import ConfigError
from reason.config.compose import compose_settings, instantiate
from reason.runs.run import strategy_settings
from reason.settings.validate import validate_settings
from search.strategy import Budget, SearchResult, Strategy
from tests.support.paths import CONF, GOLDEN
from tests.support.searches import option_names
from tests.support.toy_search import ROOT, ToyEngine, decode_bytes, extract_answer, toy_resources


def config(*overrides: str) -> dict[str, Any]:
    return compose_settings([*overrides, "model.path=somewhere"])[0]


KNOBS = {"cntp": ["search.trial_tokens=64"]}  # the toy writes another text behind every part of 10 tokens


def strategy(name: str) -> Strategy:
    configured: Strategy = instantiate("search", config(f"search={name}", *KNOBS.get(name, ()))["search"])
    return configured


def solve(name: str, **changes: Any) -> SearchResult:
    return asyncio.run(strategy(name)(ROOT, toy_resources(**{"engine": ToyEngine(hesitates=True)} | changes)))


@pytest.mark.parametrize("group", ["search", "scorer", "model", "engine"])
def test_every_option_of_a_group_composes_with_a_class_of_the_project(group: str) -> None:
    for name in option_names(group):
        node = config(f"{group}={name}")[group]
        target = node.get("_target_", "reason.")
        assert target.startswith(("reason.", "search.", "decoding.")), name


@pytest.mark.parametrize("task", option_names("task"))
def test_every_task_yaml_composes(task: str) -> None:
    assert config(f"+task={task}")["task"]["_target_"].startswith("reason.tasks.")


def test_effort_beside_another_search_is_refused() -> None:
    validate_settings(*compose_settings(["effort=low", "search=self_consistency"]))
    with pytest.raises(ConfigError, match=r"effort=low is search=self_consistency; leave out search=ets, or effort"):
        validate_settings(*compose_settings(["effort=low", "search=ets"]))


@pytest.mark.parametrize("name", option_names("effort"))
def test_every_effort_is_a_search_with_a_width_that_can_be_set(name: str) -> None:
    plan = validate_settings(*compose_settings([f"effort={name}", "search.n=8"]))
    assert strategy_settings(plan.strategy)["n"] == 8


TRAINED_FIRST = {"fetch"}  # tests/reason/training/test_td_lambda.py


@pytest.mark.parametrize(
    "name", [n for n in option_names("experiment") if not n.startswith("paper_") and n not in TRAINED_FIRST]
)
def test_every_value_of_an_experiment_sweep_is_valid(name: str) -> None:
    sweep = OmegaConf.load(CONF / "experiment" / f"{name}.yaml").hydra.sweeper.params
    values = {key: str(text).split(",") for key, text in sweep.items()}
    first = [f"{key}={some[0]}" for key, some in values.items()]
    for key, some in values.items():
        for value in some:
            others = [setting for setting in first if not setting.startswith(f"{key}=")]
            validate_settings(*compose_settings([f"+experiment={name}", *others, f"{key}={value}"]))


@pytest.mark.parametrize("scorer", option_names("scorer"))
def test_every_scorer_builds_without_loading_anything(scorer: str) -> None:
    made = instantiate("scorer", config(f"scorer={scorer}")["scorer"])
    assert callable(made.bind)


def test_bundled_model_names_tasks_that_exist() -> None:
    model = config()["model"]
    assert {model["default_task"], *model["stand_in"].values(), *model["stand_in"]} <= set(option_names("task"))


@pytest.mark.parametrize("name", option_names("search"))
class TestStrategy:
    """Contract of all strategies; a new yaml in `conf/search/` is tested without a change here."""

    def test_strategy_solves_and_keeps_tree_invariants(self, name: str) -> None:
        result = solve(name)
        result.tree.assert_invariants()
        assert result.best is not None
        assert result.best in [candidate.node for candidate in result.candidates]
        assert extract_answer(result.tree.path_text(result.best)) in result.votes
        assert result.stop_reason == "done"

    def test_chosen_answer_has_the_most_votes(self, name: str) -> None:
        result = solve(name)
        assert result.best is not None
        chosen = extract_answer(result.tree.path_text(result.best))
        assert chosen is not None
        assert result.votes[chosen] == max(result.votes.values())

    def test_tree_repeats_for_a_seed_and_differs_for_another(self, name: str) -> None:
        assert solve(name).tree.to_dict() == solve(name).tree.to_dict()
        assert solve(name).tree.to_dict() != solve(name, seed=2).tree.to_dict()

    def test_requests_have_distinct_seeds_per_prefix(self, name: str) -> None:
        engine = ToyEngine(hesitates=True)
        solve(name, engine=engine)
        prefixes_and_seeds = [(request.prefix, request.seed) for request in engine.requests]
        assert len(set(prefixes_and_seeds)) == len(prefixes_and_seeds) > 1

    @pytest.mark.parametrize("limit", [Budget(tokens=1), Budget(tokens=333), Budget(calls=3), Budget(tokens=99_999)])
    def test_budget_holds_and_usage_is_reported(self, name: str, limit: Budget) -> None:
        engine = ToyEngine(hesitates=True)
        result = solve(name, engine=engine, budget=limit)
        tokens = sum(len(node.step.tokens) for node in result.tree.nodes)
        if name == "pg_td":  # the tokens that it chooses itself are not generated
            assert result.usage.tokens <= tokens
            assert result.usage.calls >= len(engine.requests)
        else:
            assert (result.usage.tokens, result.usage.calls) == (tokens, len(engine.requests))
        assert limit.tokens is None or result.usage.tokens <= limit.tokens
        assert limit.calls is None or result.usage.calls <= limit.calls
        assert result.stop_reason == ("done" if limit.tokens == 99_999 else "budget")

    def test_passed_deadline_is_a_normal_end(self, name: str) -> None:
        result = solve(name, budget=Budget(seconds=1e-9))
        assert (result.best, result.usage.calls, result.stop_reason) == (None, 0, "budget")

    def test_strategy_is_immutable(self, name: str) -> None:
        before = strategy(name)
        used = copy.deepcopy(before)
        asyncio.run(used(ROOT, toy_resources(engine=ToyEngine(hesitates=True))))
        assert used == before
        with pytest.raises(AttributeError):
            used.n = 3  # type: ignore[attr-defined]

    def test_strategy_runs_without_a_scorer_unless_it_needs_one(self, name: str) -> None:
        if not strategy(name).needs_scorer:
            assert solve(name, scorer=None).best is not None

    def test_concurrent_searches_equal_sequential_ones(self, name: str) -> None:
        async def together() -> list[SearchResult]:
            one = strategy(name)
            engine = ToyEngine(hesitates=True)
            return list(await asyncio.gather(*(one(ROOT, toy_resources(engine=engine, seed=s)) for s in range(4))))

        alone = [solve(name, seed=seed).tree.to_dict() for seed in range(4)]
        assert [result.tree.to_dict() for result in asyncio.run(together())] == alone

    def test_tree_equals_the_golden_tree(self, name: str) -> None:
        """Regenerate with `REGENERATE_GOLDEN=1 pytest tests/test_conf.py`, and read the difference."""
        file = GOLDEN / f"{name}.json"
        settings = {key: value for key, value in config(f"search={name}")["search"].items() if key != "sampling"}
        result = solve(name, budget=Budget(tokens=400))
        golden = json.loads(
            json.dumps(
                {
                    "settings": settings,
                    "best": result.best,
                    "votes": {answer: round(votes, 6) for answer, votes in result.votes.items()},
                    "text": decode_bytes(result.tree.prefix_tokens(result.best)) if result.best is not None else None,
                    **result.tree.to_dict(),
                }
            )
        )
        for node in golden["nodes"]:
            del node["logprobs"]
            node["score"] = None if node["score"] is None else round(node["score"], 6)
        if os.environ.get("REGENERATE_GOLDEN"):
            GOLDEN.mkdir(exist_ok=True)
            file.write_text(_readable(dict(golden)), encoding="utf-8")
        assert golden == json.loads(file.read_text(encoding="utf-8"))


def _readable(golden: dict[str, Any]) -> str:
    """The prompt on one line, and every node on one."""
    root, nodes = golden.pop("root"), ",\n".join(f"    {json.dumps(node)}" for node in golden.pop("nodes"))
    head = json.dumps(golden, indent=2)[:-2]
    return f'{head},\n  "root": {json.dumps(root)},\n  "nodes": [\n{nodes}\n  ]\n}}\n'
