"""Training of the small parts of speculation: what they learn from, and that a trained one is what its user loads."""

from __future__ import annotations

import dataclasses
import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decoding.model.transformers_checkpoint import HFBackend
from decoding.speculation.acceptance.judge import Judge
from decoding.speculation.drafters.acceptance_head import AcceptanceHead
from reason.config.errors import ConfigError
from reason.engines.acceptance_head import load_acceptance_head, save_acceptance_head
from reason.engines.draft_model import DraftModelSource
from reason.engines.draft_vocabulary import read_draft_vocabulary, save_draft_vocabulary
from reason.engines.judge_head import load_judge, save_judge
from reason.models.checkpoint import find_model, load_tokenizer
from reason.tasks.synthetic.draw import distinct_exercises
from reason.tasks.synthetic.exercise import ExactWriter
from reason.tasks.synthetic.step_checker import check_solution
from reason.training.draft_heads import (
    DraftHeadRecipe,
    WrittenText,
    label_tokens,
    mix_tokens,
    rank_ids,
    read_hidden,
    train_acceptance_head,
    train_judge,
)
from reason.training.loop import TrainingRecipe
from reason.training.stages import SPECULATION_STAGES, ModelShape, TrainingPlan, run_stage
from reason.training.tokenizer import render_prompt
from tests.support.error_injection import ErrorWriter
from tests.support.random_models import random_model

WEIGHTS = {"recurrence": 1.0, "words": 1.0}
PROMPT = (3, 1, 4)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(find_model("bundled:target").source)


def written_texts(tokenizer: Any, count: int, *, share_wrong: float) -> list[WrittenText]:
    """Returns solutions by the exact writer, some of them with a wrong number."""
    rng, texts = random.Random(1), []
    for exercise in islice(distinct_exercises(1, "train", weights=WEIGHTS), count):
        steady = ExactWriter()
        exercise.write_solution(steady, random.Random(0))
        is_wrong = rng.random() < share_wrong
        writer: Any = ErrorWriter(rng.randrange(steady.num_written), rng) if is_wrong else ExactWriter()
        text = exercise.write_solution(writer, random.Random(0))
        texts.append(
            WrittenText(
                tuple(tokenizer.encode(render_prompt(exercise.question))), tuple(tokenizer.encode(text)), exercise
            )
        )
    return texts


def small_backend(seed: int) -> HFBackend:
    model = random_model("llama")
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(0.2 * seed * torch.randn_like(parameter))
    return HFBackend(model, device="cpu", dtype="float32")


def text_of(tokens: tuple[int, ...]) -> WrittenText:
    exercise = next(distinct_exercises(0, "train", weights=WEIGHTS))
    return WrittenText(PROMPT, tokens, exercise)


def test_tokens_are_right_up_to_the_first_mistake(tokenizer: Any) -> None:
    num_wrong = 0
    for text in written_texts(tokenizer, 40, share_wrong=0.6):
        labels = label_tokens(text, tokenizer).tolist()
        solution = tokenizer.decode(list(text.tokens))
        mistake = check_solution(text.exercise, solution).first_error
        if mistake is None:
            assert labels == [1.0] * len(text.tokens)
            continue
        num_wrong += 1
        assert labels == [1.0] * (len(labels) - 1) + [0.0]
        assert len(tokenizer.decode(list(text.tokens[: len(labels) - 1]))) <= mistake
        assert len(tokenizer.decode(list(text.tokens[: len(labels)]))) > mistake
    assert 10 < num_wrong < 40


def test_drawn_tokens_are_accepted_with_the_ratio_of_both_models() -> None:
    """Where the draft model is the target all are; without a share of the target's tokens all are drawn."""
    target, draft = small_backend(0), small_backend(1)
    text = text_of(tuple(random.Random(0).randrange(97) for _ in range(30)))
    noise = torch.Generator().manual_seed(0)
    hidden, accepted = mix_tokens(text, target, draft, 0.0, noise)
    assert hidden.shape == (30, 32)
    assert accepted.shape == (30,)
    assert 0 <= float(accepted.min()) < float(accepted.max()) <= 1
    same = mix_tokens(text, draft, draft, 0.0, noise)[1]
    torch.testing.assert_close(same, torch.ones(30))
    counts = [len(mix_tokens(text, target, draft, 0.5, noise)[1]) for _ in range(40)]
    assert 10 < np.mean(counts) < 20


def test_states_are_those_at_the_drawn_tokens() -> None:
    target, draft = small_backend(0), small_backend(1)
    text = text_of((5, 6, 7, 8))
    hidden, _ = mix_tokens(text, target, draft, 0.0, torch.Generator().manual_seed(3))
    log_q = draft.apply_head(read_hidden(draft, (*PROMPT, *text.tokens))[2:-1]).log_softmax(-1)
    drawn = torch.multinomial(log_q.exp(), 1, generator=torch.Generator().manual_seed(3))[:, 0].tolist()
    torch.testing.assert_close(hidden, read_hidden(draft, (*PROMPT, *drawn))[3:])


def test_ids_are_ranked_by_how_often_they_are_written() -> None:
    texts = [text_of((1, 1, 2)), text_of((2, 1, 9, 3)), text_of((3,))]
    assert rank_ids(texts, 3) == [1, 2, 3]
    assert rank_ids(texts, 99) == [1, 2, 3, 9]


def test_an_acceptance_head_learns_which_tokens_are_refused() -> None:
    rng = random.Random(0)
    exercises = islice(distinct_exercises(0, "train", weights=WEIGHTS), 60)
    texts = [WrittenText(PROMPT, tuple(rng.randrange(97) for _ in range(40)), exercise) for exercise in exercises]
    recipe = DraftHeadRecipe(problems=60, epochs=60, blocks=1)
    models = small_backend(0), small_backend(1)
    _, figures = train_acceptance_head(texts, *models, recipe)
    assert figures["auc"] > 0.6
    short = dataclasses.replace(recipe, epochs=2)
    (head, _), (again, _) = (train_acceptance_head(texts, *models, short) for _ in range(2))
    assert torch.equal(again.out[0], head.out[0])


def test_a_judge_learns_mistakes_from_the_targets_states(tokenizer: Any) -> None:
    from reason.models.plain_checkpoint import open_language_model

    target = open_language_model(find_model("bundled:target").source, device="cpu", dtype="float32")
    texts = written_texts(tokenizer, 150, share_wrong=0.7)
    weight_D, _, figures = train_judge(texts, target, tokenizer, DraftHeadRecipe(epochs=40))
    assert weight_D.shape == (192,)
    assert figures["auc"] > 0.8
    assert figures["right_passed"] > figures["wrong_passed"] + 0.3
    with pytest.raises(ValueError, match="made no mistake"):
        train_judge(written_texts(tokenizer, 12, share_wrong=0.0), target, tokenizer, DraftHeadRecipe(epochs=1))


def test_heads_are_read_as_they_were_written(tmp_path: Path) -> None:
    head = AcceptanceHead([(torch.randn(3, 3), torch.randn(3)) for _ in range(2)], (torch.randn(3), torch.randn(1)))
    save_acceptance_head(tmp_path / "a", head, "bundled:draft")
    states = torch.randn(5, 3)
    torch.testing.assert_close(
        load_acceptance_head(str(tmp_path / "a"), 3).predict_logits(states), head.predict_logits(states)
    )
    with pytest.raises(ValueError, match="reads hidden states of 3 numbers, the draft model has 4"):
        load_acceptance_head(str(tmp_path / "a"), 4)
    save_judge(tmp_path / "j", np.array([1.0, 2.0], dtype=np.float32), -0.5, "bundled:target")
    judge = load_judge(str(tmp_path / "j"), 0.7)
    assert isinstance(judge, Judge)
    assert (judge.weight_D.tolist(), judge.bias, judge.threshold) == ([1.0, 2.0], -0.5, 0.7)
    save_draft_vocabulary(tmp_path / "v", [4, 2, 9], "bundled:target")
    assert read_draft_vocabulary(str(tmp_path / "v")) == [4, 2, 9]
    for wrong in (tmp_path / "a", tmp_path / "v"):
        with pytest.raises(ValueError, match=r"is a .*, not a head"):
            load_judge(str(wrong))


@pytest.mark.parametrize("ids", [[], [1, 1], [-1], ["1"], None, [True]])
def test_a_vocabulary_of_anything_but_ids_is_refused(ids: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "draft_vocabulary", "ids": ids}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"must have a list of token ids|names an id twice"):
        read_draft_vocabulary(str(tmp_path))


def test_ids_beyond_the_draft_models_are_refused(tmp_path: Path) -> None:
    save_draft_vocabulary(tmp_path, [5, 5000], "")
    with pytest.raises(ValueError, match="has id 5000; bundled:draft has ids below"):
        DraftModelSource("bundled:draft", vocabulary=str(tmp_path))


def test_every_stage_makes_what_its_setting_loads(tmp_path: Path) -> None:
    """With the bundled models, few problems and few passes."""
    shape = ModelShape(hidden=32, layers=1, mlp=32, heads=1)
    plan = TrainingPlan(
        folder=tmp_path,
        weights=WEIGHTS,
        shapes={"target": shape, "tiny_draft": shape},
        recipes={"target": TrainingRecipe(tokens=1), "tiny_draft": TrainingRecipe(tokens=5000, tokens_per_batch=500)},
        heads=DraftHeadRecipe(problems=20, samples=2, epochs=2, vocabulary_size=40),
        device="cpu",
        ship_to=tmp_path / "shipped",
    )
    figures = {stage: run_stage(stage, plan) for stage in (*SPECULATION_STAGES, "ship")}
    assert set(figures["ship"]) == {f"{stage}_mb" for stage in SPECULATION_STAGES}
    assert load_judge(str(plan.ship_to / "judge_head")).weight_D.shape == (192,)
    assert load_acceptance_head(str(plan.ship_to / "acceptance_head"), 128).out[0].shape == (128,)
    draft = DraftModelSource(
        str(plan.ship_to / "tiny_draft"), target_tokenizer=load_tokenizer(find_model("bundled:target").source)
    )
    assert draft.is_trained
    assert 0 < float(str(figures["tiny_draft"]["accepted"])) < 0.9
    assert len(read_draft_vocabulary(str(plan.ship_to / "draft_vocabulary"))) == 40


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problems": 3}, "heads.problems must be an int >= 10"),
        ({"target_share": 1.0}, r"heads.target_share must be in \[0, 1\)"),
        ({"refusal_weight": 0.0}, "heads.refusal_weight must be a number > 0"),
        ({"blocks": 0}, "heads.blocks must be an int >= 1"),
    ],
)
def test_a_wrong_setting_of_the_stages_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(DraftHeadRecipe(), **settings)


def test_a_missing_head_is_named() -> None:
    with pytest.raises(ConfigError, match=r"acceptance\.path=/no/such"):
        load_judge("/no/such")
