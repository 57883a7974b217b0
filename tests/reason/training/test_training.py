"""Training of the bundled models: examples, ordinary checkpoints, and resuming a killed run."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from contextlib import closing
from itertools import islice

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from reason.scorers.formats.token_classification import TokenClassifier
from reason.scorers.prm import PrmScorer
from reason.tasks.synthetic.draw import distinct_exercises, split_of
from reason.tasks.synthetic.exercise import ExactWriter
from reason.training.examples import IGNORE, ExampleEncoder, batch_examples
from reason.training.loop import TrainingRecipe, rate_factor
from reason.training.stages import ModelShape, TrainingPlan, run_stage
from reason.training.stream import SolutionSource, batch_stream, collate_examples
from reason.training.tokenizer import EOS, render_prompt
from search.tree import Step

WEIGHTS = {"recurrence": 1.0, "words": 1.0}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TrainingPlan:
    """A plan for models of a few thousand weights, with its tokenizer trained."""
    recipe = TrainingRecipe(tokens=4000, tokens_per_batch=1024, warmup_steps=2, save_every_s=0, workers=0)
    shape = ModelShape(hidden=32, layers=1, mlp=32, heads=1)
    plan = TrainingPlan(
        folder=tmp_path_factory.mktemp("train"),
        weights=WEIGHTS,
        shapes={"target": shape, "draft": shape},
        recipes=dict.fromkeys(("target", "draft", "verifier", "prm"), recipe),
        device="cpu",
    )
    run_stage("tokenizer", plan)
    return plan


def test_targets_of_an_example_are_the_tokens_of_its_solution(plan: TrainingPlan) -> None:
    tokenizer = AutoTokenizer.from_pretrained(plan.folder / "tokenizer")
    encode = ExampleEncoder(tokenizer)
    exercises = list(islice(distinct_exercises(0, "train", weights=WEIGHTS), 5))
    solutions = [e.write_solution(ExactWriter(), random.Random(0)) for e in exercises]
    batch = collate_examples([encode(e, s) for e, s in zip(exercises, solutions, strict=True)], tokenizer.pad_token_id)
    for exercise, solution, ids, next_ids in zip(exercises, solutions, batch["ids"], batch["next_ids"], strict=True):
        taught = next_ids[next_ids != IGNORE].tolist()
        assert tokenizer.decode(taught) == solution + EOS
        first = int((next_ids != IGNORE).nonzero()[0])
        assert tokenizer.decode(ids[: first + 1].tolist()) == render_prompt(exercise.question)
        assert next_ids[first : first + 3].tolist() == ids[first + 1 : first + 4].tolist()


def test_batches_hold_every_example_within_their_size(plan: TrainingPlan) -> None:
    tokenizer = AutoTokenizer.from_pretrained(plan.folder / "tokenizer")
    encode = ExampleEncoder(tokenizer)
    exercises = islice(distinct_exercises(0, "train", weights=WEIGHTS), 40)
    examples = [encode(e, e.write_solution(ExactWriter(), random.Random(0))) for e in exercises]
    got = list(batch_examples(examples, 1024, random.Random(0)))
    assert sorted(id(e) for batch in got for e in batch) == sorted(map(id, examples))
    assert all(len(batch) * max(len(e.ids) for e in batch) <= 1024 for batch in got)


def test_training_stream_has_no_heldout_question(plan: TrainingPlan) -> None:
    tokenizer = AutoTokenizer.from_pretrained(plan.folder / "tokenizer")
    tokenizer_dir = str(plan.folder / "tokenizer")
    source = batch_stream(tokenizer_dir, SolutionSource(WEIGHTS), tokens_per_batch=2048, seed=0, workers=0)
    for batch in islice(source, 5):
        for row in batch["ids"]:
            text = tokenizer.decode(row.tolist())
            assert split_of(text.partition("Question: ")[2].partition("\nSolution:")[0]) == "train"


def test_training_stage_leaves_an_ordinary_checkpoint_and_does_not_run_twice(plan: TrainingPlan) -> None:
    first = run_stage("draft", plan)
    assert run_stage("draft", plan) == first
    model = AutoModelForCausalLM.from_pretrained(plan.folder / "draft")
    text = render_prompt("x0 = 1. Find x2.")
    here, trained = (AutoTokenizer.from_pretrained(plan.folder / name) for name in ("draft", "tokenizer"))
    assert here.encode(text) == trained.encode(text)
    assert model.config.eos_token_id == here.eos_token_id


def test_killed_training_resumes_from_its_checkpoint(plan: TrainingPlan) -> None:
    """Its checkpoint exists, its stage is not done; the second run continues from the checkpoint."""
    stopped = dataclasses.replace(plan.recipes["target"], tokens=2000)
    run_stage("target", dataclasses.replace(plan, recipes={**plan.recipes, "target": stopped}))
    (plan.folder / "target" / "done.json").unlink()
    before = torch.load(plan.folder / "target" / "checkpoint.pt", weights_only=True)["state"]
    figures = run_stage("target", plan)
    assert before["runs"] == 1
    assert figures["runs"] == 2
    assert figures["step"] > before["step"] > 0


def test_reward_model_is_an_ordinary_token_classifier_deeper_than_the_verifier(plan: TrainingPlan) -> None:
    for stage in ("target", "verifier", "prm"):
        run_stage(stage, plan)
    model = AutoModelForTokenClassification.from_pretrained(plan.folder / "prm", dtype=torch.float32)
    assert model.config.id2label == {0: "wrong", 1: "right"}
    assert model.config.num_hidden_layers == plan.shapes["target"].layers + plan.judging_layers
    scorer = PrmScorer(adapter=TokenClassifier(reads="tokens", judges="tokens"), path=str(plan.folder / "prm"))
    path = [Step((5, 6, 7), ""), Step((8,), "")]
    with closing(scorer):
        (scores,) = asyncio.run(scorer.bind("", (3, 4)).score([path])).scores
    with torch.no_grad():
        right = model(torch.tensor([[3, 4, 5, 6, 7, 8]])).logits.float().softmax(-1)[0, 2:, 1]
    assert scores == pytest.approx([float(right[:3].prod()), float(right.prod())], rel=1e-3)


def test_learning_rate_warms_up_stays_and_decays() -> None:
    rates = [rate_factor(step / 1000, step, 100) for step in range(1001)]
    assert rates[:100] == sorted(rates[:100])
    assert set(rates[100:500]) == {1.0}
    assert rates[500:] == sorted(rates[500:], reverse=True)
    assert rates[-1] == 0.02
