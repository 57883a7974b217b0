"""Examples of thoughts: what is taught, what is put in, and the tokenizer of the bundled thinker."""

from __future__ import annotations

import math
import random
import re
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from reason.models.checkpoint import eos_ids, find_model, load_tokenizer
from reason.tasks.puzzles import forms
from reason.tasks.puzzles.families import PUZZLES
from reason.tasks.puzzles.thought import ThoughtStyle
from reason.tasks.synthetic.draw import split_of
from reason.training.examples import EMPHASIS, IGNORE, TrainingExample
from reason.training.loop import TrainingRecipe, language_loss
from reason.training.stages import ModelShape, TrainingPlan, run_stage
from reason.training.stream import collate_examples
from reason.training.thoughts import KINDS, LONGEST_THOUGHT, ThoughtSource
from reason.training.tokenizer import build_thinker_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast

WEIGHTS = dict.fromkeys(PUZZLES, 1.0)
PUT_IN = (forms.ANSWER_REQUEST, forms.NOTES_REQUEST)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_thinker_tokenizer(300, 5)


@cache
def examples(tokenizer: PreTrainedTokenizerFast) -> list[TrainingExample]:
    draw_example, rng = ThoughtSource(WEIGHTS)(tokenizer), random.Random(0)
    return [draw_example(rng) for _ in range(200)]


def test_tags_and_numbers_are_single_tokens_and_tags_stay_visible(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in (forms.OPENING, forms.CLOSING, forms.TURN_START, forms.TURN_END, "\n\n", *map(str, range(150))):
        assert len(tokenizer.encode(text)) == 1, text
    assert tokenizer.tokenize("12+9=21, 21-13=8")[::2] == ["12", "9", "21", "21", "13", "8"]
    assert tokenizer.decode(tokenizer.encode("<think>1</think>"), skip_special_tokens=True) == "<think>1</think>"
    assert tokenizer.eos_token == forms.TURN_END


def test_chat_template_writes_the_prompt_of_the_training(tokenizer: PreTrainedTokenizerFast) -> None:
    conversation = [{"role": "user", "content": "Find x."}]
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert text == forms.render_prompt("Find x.")


def test_everything_but_prompt_slips_and_texts_put_in_is_taught(tokenizer: PreTrainedTokenizerFast) -> None:
    num_put_in = 0
    for example in examples(tokenizer):
        batch = collate_examples([example], 0)
        taught = batch["next_ids"][0][: len(example.ids) - 1] != IGNORE
        untaught = {index for index, is_taught in enumerate(taught.tolist(), 1) if not is_taught}
        assert untaught == {*range(1, example.prompt_length), *example.untaught}
        text = tokenizer.decode([i for n, i in enumerate(example.ids) if n in example.untaught])
        put_in = [one for one in PUT_IN if one in text]
        num_put_in += bool(put_in)
        assert re.fullmatch(r"[\d,; ]*", text.removesuffix(max(put_in, key=len)) if put_in else text)
    assert 0.35 < num_put_in / len(examples(tokenizer)) < 0.65


def test_reply_after_a_forced_end_is_the_answer_or_an_empty_box(tokenizer: PreTrainedTokenizerFast) -> None:
    """The answer once it is stated; before that the box stays empty, which is no answer."""
    draw_example, rng = ThoughtSource({"congruences": 1.0}, ThoughtStyle(slip=0.0))(tokenizer), random.Random(1)
    num_stated, num_open = 0, 0
    for example in (draw_example(rng) for _ in range(300)):
        taught = [i for n, i in enumerate(example.ids) if n >= example.prompt_length and n not in example.untaught]
        if len(taught) == len(example.ids) - example.prompt_length:
            continue
        thought, requested, reply = tokenizer.decode(example.ids[example.prompt_length :]).partition(
            forms.ANSWER_REQUEST
        )
        if requested:
            box = re.fullmatch(r"(\d*)\}\.<\|im_end\|>", reply)
            assert box
            if stated := re.findall(r"So x = (\d+)\.", thought):
                num_stated += 1
                assert stated[-1] == box[1]
            elif "=0." not in thought and " works." not in tokenizer.decode(example.ids[: example.prompt_length]):
                num_open += 1
                assert box[1] == ""
    assert min(num_stated, num_open) > 3


def test_loss_of_a_reply_counts_more_and_that_of_whole_thoughts_as_before(tokenizer: PreTrainedTokenizerFast) -> None:
    vocabulary = len(tokenizer)

    class Uniform:
        """Predicts every token with equal probability, but one of them never."""

        def __init__(self, never: int) -> None:
            self._never = never

        def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
            logits = torch.zeros(*input_ids.shape, vocabulary)
            logits[..., self._never] = -10
            return SimpleNamespace(logits=logits)

    for example in examples(tokenizer)[:60]:
        batch = collate_examples([example], 0)
        taught = [n for n in range(example.prompt_length, len(example.ids)) if n not in example.untaught]
        reply = [n for n in example.emphasis if n in taught]
        assert len(reply) == len(example.emphasis)
        never = example.ids[-1]
        total = sum(EMPHASIS if n in reply else 1 for n in taught)
        wrong = sum(EMPHASIS if n in reply else 1 for n in taught if example.ids[n] == never)
        even = math.log(vocabulary - 1 + math.exp(-10))
        assert language_loss(Uniform(never), batch).item() == pytest.approx(even + 10 * wrong / total, rel=1e-4)


def test_examples_are_of_the_training_split_and_no_longer_than_allowed(tokenizer: PreTrainedTokenizerFast) -> None:
    for example in examples(tokenizer):
        prompt = tokenizer.decode(example.ids[: example.prompt_length])
        (question,) = re.findall(r"^Find .*?(?=<\|im_end\|>)", prompt, flags=re.MULTILINE)
        assert split_of(question) == "train"
        assert len(example.ids) - example.prompt_length <= LONGEST_THOUGHT + 60


def test_drill_teaches_results_and_comparisons_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    draw_example, rng = ThoughtSource(WEIGHTS, ThoughtStyle(drill=1.0))(tokenizer), random.Random(0)
    for example in (draw_example(rng) for _ in range(20)):
        tokens = list(enumerate(example.ids))[example.prompt_length :]
        text = tokenizer.decode([token for _, token in tokens])
        sums = re.findall(r"(\d+)([+-])(\d+)=(-?\d+)", text)
        assert all(int(a) + int(b) * (1 if sign == "+" else -1) == int(result) for a, sign, b, result in sums)
        assert all(int(total) < int(modulus) for total, modulus in re.findall(r"(\d+)<(\d+)", text))
        taught = tokenizer.decode([token for index, token in tokens if index not in example.untaught])
        assert taught == "".join(re.findall(r"(?<=\d=)-?\d+(?=[,;.:])|(?<=, \d)[<-]|(?<=, \d\d)[<-]", text))


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"slip": 1.5}, r"thought_style.slip must be in \[0, 1\]"), ({"least_share": 0.7}, "at most most_share")],
)
def test_wrong_style_of_thoughts_is_named(setting: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThoughtStyle(**setting)


@pytest.mark.parametrize("span", [(0, 2), (3, 2), (1,)])
def test_wrong_difficulty_of_puzzles_is_named(tmp_path: Path, span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"puzzle_difficulty\[[01]\]"):
        TrainingPlan(folder=tmp_path, weights={}, puzzle_difficulty=span, shapes={}, recipes={})


def test_kinds_are_shares_of_all_examples() -> None:
    assert sum(KINDS.values()) == pytest.approx(1.0)


def test_thinker_stage_leaves_an_ordinary_checkpoint_with_a_template(tmp_path: Path) -> None:
    plan = TrainingPlan(
        folder=tmp_path,
        weights={},
        puzzle_weights=WEIGHTS,
        shapes={"thinker": ModelShape(hidden=32, layers=1, mlp=32, heads=1)},
        recipes={"thinker": TrainingRecipe(tokens=4000, tokens_per_batch=2048, workers=0, bfloat16=True)},
        device="cpu",
        ship_to=tmp_path / "bundled",
    )
    run_stage("thinker", plan)
    figures = run_stage("ship", plan)
    assert list(figures) == ["thinker_mb"]
    checkpoint = find_model(str(tmp_path / "bundled" / "thinker"))
    assert checkpoint.context_window == 4096
    loaded: Any = load_tokenizer(checkpoint.source)
    conversation = [{"role": "user", "content": "Find x."}]
    text = loaded.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert text == forms.render_prompt("Find x.")
    assert eos_ids(checkpoint.source, loaded) == {loaded.eos_token_id}


def test_unknown_family_of_puzzles_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"puzzle_weights.*congruences"):
        TrainingPlan(folder=tmp_path, weights={}, puzzle_weights={"sums": 1.0}, shapes={}, recipes={})
