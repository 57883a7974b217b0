"""Value models by TD(lambda): their targets, what they learn from, and their use as an ensemble (FETCH)."""

from __future__ import annotations

import dataclasses
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reason
from reason.config.compose import compose_settings
from reason.scorers.ensemble import EnsembleScorer
from reason.settings.validate import validate_settings
from reason.training.loop import TrainingRecipe
from reason.training.stages import ModelShape, TrainingPlan, run_stage
from reason.training.td_lambda import (
    NO_STEP,
    Trajectory,
    ValueRecipe,
    batch_trajectories,
    td_targets,
    write_trajectories,
)
from search.strategies.beam_search import BeamSearch

WEIGHTS = {"recurrence": 1.0, "words": 1.0}
VALUES = ValueRecipe(problems=6, samples=2, difficulty=(1, 2))

value = st.floats(-1, 1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TrainingPlan:
    """A plan for two value models, with the stage done."""
    recipe = TrainingRecipe(tokens=3000, tokens_per_batch=512, warmup_steps=2, save_every_s=0, workers=0)
    plan = TrainingPlan(
        folder=tmp_path_factory.mktemp("train"),
        weights=WEIGHTS,
        shapes={"target": ModelShape(hidden=32, layers=1, mlp=32, heads=1)},
        recipes={"value_models": recipe},
        values=VALUES,
        judging_layers=1,
        device="cpu",
    )
    run_stage("value_models", plan)
    return plan


@given(st.lists(value, min_size=1, max_size=7), st.sampled_from([1.0, -1.0]), st.floats(0, 1), st.integers(0, 3))
def test_target_is_the_mixture_of_all_returns(values: list[float], outcome: float, decay: float, padding: int) -> None:
    """The forward view: n-step returns, weighted by (1 - decay) decay^(n - 1), the last one by what is left."""
    count = len(values)
    row = torch.tensor([[*values, *[0.3] * padding]], dtype=torch.float64)
    real = torch.tensor([[True] * count + [False] * padding])
    targets = td_targets(row, torch.tensor([outcome], dtype=torch.float64), real, decay)[0]
    for step in range(count):
        left = count - step
        returns = [*values[step + 1 :], outcome]
        weights = [(1 - decay) * decay ** (n - 1) for n in range(1, left)] + [decay ** (left - 1)]
        expected = sum(weight * each for weight, each in zip(weights, returns, strict=True))
        assert float(targets[step]) == pytest.approx(expected)
    assert targets[count:].tolist() == [0.0] * padding
    assert float(targets[:count].abs().max()) <= 1 + 1e-9


def test_batches_hold_every_solution_once_an_epoch() -> None:
    trajectories = [Trajectory(list(range(10 + i)), [4, 9 + i], i % 2 == 0) for i in range(9)]
    stream = batch_trajectories(trajectories, 40, pad_id=0, seed=1)
    lengths, outcomes = list[int](), list[float]()
    while len(lengths) < 9:
        batch = next(stream)
        assert batch["ids"].numel() <= 40 or len(batch["ids"]) == 1
        assert (batch["step_ends"] != NO_STEP).all()
        lengths += batch["step_ends"][:, -1].tolist()
        outcomes += batch["outcomes"].tolist()
    assert sorted(lengths) == [9 + i for i in range(9)]
    assert sum(outcomes) == 1
    first, second = (
        [b["outcomes"].tolist() for b in islice(batch_trajectories(trajectories, 40, 0, seed), 12)] for seed in (1, 2)
    )
    assert first != second


def test_solutions_are_graded_and_their_steps_end_where_steps_end() -> None:
    trajectories = write_trajectories(VALUES, WEIGHTS)
    assert len(trajectories) == 12
    assert {t.is_right for t in trajectories} == {True, False}
    assert all(t.step_ends == sorted(set(t.step_ends)) and t.step_ends[-1] == len(t.ids) - 1 for t in trajectories)
    assert write_trajectories(VALUES, WEIGHTS) == trajectories


def test_stage_leaves_different_classifiers_and_does_not_run_twice(plan: TrainingPlan) -> None:
    done = json.loads((plan.folder / "value_models" / "done.json").read_text())
    assert done["solutions"] == 12
    assert run_stage("value_models", dataclasses.replace(plan, weights={})) == done
    first, second = ((plan.folder / "value_models" / str(i) / "model.safetensors").read_bytes() for i in (1, 2))
    assert len(first) == len(second)
    assert first != second


def test_training_lowers_the_loss(tmp_path: Path, plan: TrainingPlan) -> None:
    longer = dataclasses.replace(plan.recipes["value_models"], tokens=40_000, warmup_steps=4)
    values = dataclasses.replace(VALUES, models=1)
    figures = run_stage(
        "value_models", dataclasses.replace(plan, folder=tmp_path, values=values, recipes={"value_models": longer})
    )
    short = json.loads((plan.folder / "value_models" / "done.json").read_text())
    assert float(str(figures["loss_1"])) < 0.7 * float(short["loss_1"])


def test_experiment_fetch_searches_with_merged_branches_and_the_mean_of_both(plan: TrainingPlan) -> None:
    folders = [str(plan.folder / "value_models" / str(i)) for i in (1, 2)]
    members = ",".join(f"{{scorer:value_model,path:'{folder}'}}" for folder in folders)
    settings = ["+experiment=fetch", f"scorer.members=[{members}]"]
    spec = validate_settings(*compose_settings(settings))
    assert isinstance(spec.strategy, BeamSearch)
    assert isinstance(spec.scorer, EnsembleScorer)
    assert (spec.strategy.merge, spec.strategy.merge_extra, spec.scorer.mean) == (True, 0.5, "probability")
    question = "x0 = 3. Then x(k+1) = x(k) + 4. Find x2."
    scores: dict[str, Any] = {}
    for name, given_settings in {
        "both": settings,
        **{folder: ["search=beam_search", "scorer=value_model", f"scorer.path={folder}"] for folder in folders},
    }.items():
        with reason.load(*given_settings, "search.n=5", "speculation=off") as solver:
            tree = solver.solve(question).result.tree
            scores[name] = {tree.prefix_tokens(i): node.score for i, node in enumerate(tree.nodes)}
    assert all(0 <= score <= 1 for tree_scores in scores.values() for score in tree_scores.values())
    shared = [path for path in scores["both"] if all(path in scores[folder] for folder in folders)]
    assert shared
    for path in shared:
        mean = sum(scores[folder][path] for folder in folders) / 2
        assert scores["both"][path] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"models": 0}, r"values\.models must be an int >= 1, got 0"),
        ({"decay": 1.5}, r"values\.decay must be in \[0, 1\], got 1.5"),
        ({"samples": 0}, r"values\.samples must be an int >= 1, got 0"),
    ],
)
def test_wrong_settings_are_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ValueRecipe(**knobs)
