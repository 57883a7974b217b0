"""Decoding of solutions whose tags are special tokens of the tokenizer, or several ordinary ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AddedToken, PreTrainedTokenizerFast

from reason.models.byte_tokenizer import ByteTokenizer
from reason.prompt import Prompt, PromptFormat
from tests.support.tiny_writer import END, save_tokenizer

CHANNELS = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
SOLUTION = f"{CHANNELS[0]}Try this. {CHANNELS[1]}Then that. {END}"
RAW = PromptFormat(raw="{question}")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """A tokenizer with the special tokens of channels, of turns, and one that is not listed among the special ones."""
    made = save_tokenizer(Path(tmp_path_factory.mktemp("tokenizer")))
    names = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|turn|>", "<think>", "</think>")
    made.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return made


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def test_tags_stay_visible_and_other_special_tokens_do_not(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = ids_of(tokenizer, SOLUTION)
    assert Prompt(RAW, tokenizer, CHANNELS).decode(ids) == SOLUTION.removesuffix(END)
    assert Prompt(RAW, tokenizer).decode(ids) == "analysisTry this. assistantfinalThen that. "
    with_turn = ids_of(tokenizer, f"<|turn|>{SOLUTION}<|turn|>")
    assert Prompt(RAW, tokenizer, CHANNELS).decode(with_turn) == SOLUTION.removesuffix(END)


def test_texts_of_consecutive_steps_join_to_the_text_of_the_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    prompt, ids = Prompt(RAW, tokenizer, CHANNELS), ids_of(tokenizer, SOLUTION)
    for cut in range(len(ids) + 1):
        assert prompt.decode(ids[:cut]) + prompt.decode(ids[cut:]) == prompt.decode(ids)


def test_same_prompt_for_another_tokenizer_keeps_the_tags(tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = Prompt(RAW, ByteTokenizer(), CHANNELS).with_tokenizer(tokenizer)
    assert prompt.decode(ids_of(tokenizer, SOLUTION)) == SOLUTION.removesuffix(END)


def test_last_turn_begins_behind_the_last_special_token(tokenizer: PreTrainedTokenizerFast) -> None:
    """A question that mentions a tag does not open a thought."""
    prompt = Prompt(RAW, tokenizer, ("<think>", "</think>"))
    conversation = ids_of(tokenizer, "<|turn|>What is <think>?<|turn|>assistant\n")
    assert prompt.decode_last_turn(conversation) == "assistant\n"
    assert prompt.decode_last_turn((*conversation, *ids_of(tokenizer, "<think>\n"))) == "assistant\n<think>\n"
    assert prompt.decode_last_turn(()) == ""


def test_last_turn_of_a_conversation_for_a_server_is_the_begun_answer() -> None:
    tokenizer = ByteTokenizer()
    prompt = Prompt(PromptFormat(answer_start="<think>\n"), tokenizer, ("<think>", "</think>"))
    assert prompt.decode_last_turn(prompt.encode("What is </think>?")) == "<think>\n"
    assert Prompt(PromptFormat(), tokenizer).decode_last_turn(prompt.encode("<think>")[:-8]) == ""
