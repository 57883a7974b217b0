"""Prompts: encoding of a question, decoding of steps, and errors of prompt formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from reason.config.compose import compose_settings, instantiate, list_options
from reason.models.checkpoint import bundled_names, load_tokenizer
from reason.prompt import Prompt, PromptFormat
from tests.support.fakes import WordTokenizer


def test_decoded_steps_join_to_the_decoded_whole() -> None:
    tokenizer = WordTokenizer()
    prompt = Prompt(PromptFormat(), tokenizer)
    ids = tuple(tokenizer.encode("so we get 4", add_special_tokens=False))
    assert prompt.decode(ids[:2]) + prompt.decode(ids[2:]) == prompt.decode(ids) == " so we get 4"


def test_raw_prompt_has_the_bos_token_and_a_chat_template_its_own() -> None:
    tokenizer = WordTokenizer()
    raw = Prompt(PromptFormat(raw="Q: {question} A:"), tokenizer).encode("why {x}?")
    assert tokenizer.decode(raw) == "<s> Q: why {x}? A:"
    chat = Prompt(PromptFormat(system="Be brief.", options={"enable_thinking": False}), tokenizer).encode("why?")
    assert tokenizer.decode(chat) == "[system] Be brief. [user] why? [assistant] "
    assert tokenizer.templated == {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}


def test_answer_start_is_added_once() -> None:
    tokenizer = WordTokenizer()
    assert tokenizer.decode(Prompt(PromptFormat(answer_start="<think>"), tokenizer).encode("why?")).endswith(
        "[assistant] <think>"
    )
    assert tokenizer.decode(Prompt(PromptFormat(answer_start="[assistant] "), tokenizer).encode("why?")).endswith(
        "why? [assistant] "
    )


def test_model_without_a_chat_template_needs_raw_text() -> None:
    tokenizer = WordTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match=r"set model\.prompt\.raw"):
        Prompt(PromptFormat(), tokenizer)
    Prompt(PromptFormat(raw="{question}"), tokenizer)


@pytest.mark.parametrize("wrong", [{"raw": "no slot"}, {"user": "no slot"}, {"delimiter": ""}])
def test_wrong_prompt_format_is_named_with_its_setting(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=rf"model\.prompt\.{next(iter(wrong))} must"):
        PromptFormat(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", list_options("model"))
def test_every_model_prompt_requests_a_box_unless_the_model_was_trained_to_write_one(model: str) -> None:
    config, _ = compose_settings([f"model={model}", "model.path=somewhere"])
    form: PromptFormat = instantiate("model.prompt", config["model"]["prompt"])
    if form.raw is None and model not in bundled_names():
        assert "\\boxed{" in str(form.build_conversation([{"role": "user", "content": "?"}]))


def test_prompt_tokenizer_is_read_from_the_file_of_the_checkpoint(tiny_writer: Path) -> None:
    """`AutoTokenizer` replaces the pre-tokenizer of a qwen2 checkpoint, and blanks were lost."""
    tokenizer = load_tokenizer(str(tiny_writer))
    prompt = Prompt(PromptFormat(raw="Question: {question}\nSolution:\n"), tokenizer)
    ids = prompt.encode("Try this. \n\nThe answer is \\boxed{3}.")
    assert prompt.decode(ids) == "Question: Try this. \n\nThe answer is \\boxed{3}.\nSolution:\n"
    assert "".join(prompt.decode((i,)) for i in ids) == prompt.decode(ids)
