"""A conversation becomes one prompt that holds every message."""

from __future__ import annotations

from typing import Any

import pytest

from reason.problem import Problem
from reason.prompt import Prompt, PromptFormat
from reason.serve.errors import ApiError
from reason.serve.question import problem_from_messages, problem_from_text
from reason.serve.schemas import ChatCompletionRequest
from tests.support.fakes import WordTokenizer

TALK = [("system", "Be brief."), ("user", "1+1?"), ("assistant", "2"), ("developer", "Be kind."), ("user", "Sure?")]


def posed(form: PromptFormat, *turns: tuple[str, Any]) -> tuple[Problem, str]:
    """Returns the problem and the text that its prompt encodes."""
    body = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": r, "content": c} for r, c in turns]}
    )
    tokenizer = WordTokenizer()
    problem = problem_from_messages(body.messages, Prompt(form, tokenizer))
    assert problem.prompt is not None
    return problem, tokenizer.decode(problem.prompt)


@pytest.mark.parametrize("form", [PromptFormat(raw="Q: {question} A:"), PromptFormat(user="{question} Think.")])
def test_single_question_has_the_prompt_of_solve(form: PromptFormat) -> None:
    problem, text = posed(form, ("user", "1+1?"))
    tokenizer = WordTokenizer()
    assert (problem.id, problem.question) == (Problem.from_question("1+1?").id, "1+1?")
    assert text == tokenizer.decode(Prompt(form, tokenizer).encode("1+1?"))


def test_text_parts_are_joined_to_one_text() -> None:
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]
    assert posed(PromptFormat(raw="{question}"), ("user", parts))[0].question == "1+1?"


def test_chat_template_gets_every_turn_and_one_system_message() -> None:
    form = PromptFormat(system="Box it.", user="{question} Think.")
    problem, text = posed(form, *TALK)
    rules = "[system] Box it.\n\nBe brief.\n\nBe kind."
    assert text == f"{rules} [user] 1+1? Think. [assistant] 2 [user] Sure? Think. [assistant] "
    assert problem.question.endswith("User: Sure?")


def test_model_without_a_chat_template_gets_every_turn_in_one_text() -> None:
    problem, text = posed(PromptFormat(raw="Q: {question} A:"), *TALK)
    assert problem.question == "Be brief.\n\nUser: 1+1?\n\nAssistant: 2\n\nBe kind.\n\nUser: Sure?"
    assert text == f"<s> Q: {problem.question} A:"


def test_different_conversations_are_different_problems() -> None:
    form = PromptFormat(raw="{question}")
    ids = {posed(form, *turns)[0].id for turns in (TALK, TALK[1:], TALK[-1:], [("user", "1+1?")])}
    assert len(ids) == 4


def test_refusal_of_a_chat_template_is_reported() -> None:
    from jinja2 import TemplateError

    class Picky(WordTokenizer):
        def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
            raise TemplateError("roles must alternate")

    body = ChatCompletionRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}] * 2})
    with pytest.raises(ApiError, match="chat template refuses the conversation: roles must alternate"):
        problem_from_messages(body.messages, Prompt(PromptFormat(), Picky()))


def test_completion_prompt_is_encoded_as_it_is() -> None:
    tokenizer = WordTokenizer()
    problem = problem_from_text("once upon a", Prompt(PromptFormat(user="{question} Think."), tokenizer))
    assert problem.prompt is not None
    assert tokenizer.decode(problem.prompt) == "<s> once upon a"


def test_assistant_message_of_an_answer_may_be_sent_back() -> None:
    ours: dict[str, Any] = {"role": "assistant", "content": "2", "refusal": None, "tool_calls": None, "annotations": []}
    messages = [
        {"role": "user", "content": "1+1?"},
        ours | {"reasoning_content": "hm"},
        {"role": "user", "content": "?"},
    ]
    assert len(ChatCompletionRequest.model_validate({"model": "m", "messages": messages}).messages) == 3
