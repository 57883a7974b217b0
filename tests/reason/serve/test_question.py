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
    """The problem and the text its prompt encodes."""
    body = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": r, "content": c} for r, c in turns]}
    )
    tokenizer = WordTokenizer()
    problem = problem_from_messages(body.messages, Prompt(form, tokenizer))
    assert problem.prompt is not None
    return problem, tokenizer.decode(problem.prompt)


@pytest.mark.parametrize("form", [PromptFormat(raw="Q: {question} A:"), PromptFormat(user="{question} Think.")])
def test_a_single_question_is_the_one_solve_would_be_asked(form: PromptFormat) -> None:
    problem, text = posed(form, ("user", "1+1?"))
    tokenizer = WordTokenizer()
    assert (problem.id, problem.question) == (Problem.from_question("1+1?").id, "1+1?")
    assert text == tokenizer.decode(Prompt(form, tokenizer).encode("1+1?"))


def test_text_in_parts_is_one_text() -> None:
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]
    assert posed(PromptFormat(raw="{question}"), ("user", parts))[0].question == "1+1?"


def test_a_chat_template_is_given_every_turn_and_one_system_message() -> None:
    form = PromptFormat(system="Box it.", user="{question} Think.")
    problem, text = posed(form, *TALK)
    rules = "[system] Box it.\n\nBe brief.\n\nBe kind."
    assert text == f"{rules} [user] 1+1? [assistant] 2 [user] Sure? Think. [assistant] "
    assert problem.question.endswith("User: Sure?")


def test_a_model_asked_with_plain_text_is_given_every_turn_in_one() -> None:
    problem, text = posed(PromptFormat(raw="Q: {question} A:"), *TALK)
    assert problem.question == "Be brief.\n\nUser: 1+1?\n\nAssistant: 2\n\nBe kind.\n\nUser: Sure?"
    assert text == f"<s> Q: {problem.question} A:"


def test_other_conversations_are_other_problems() -> None:
    form = PromptFormat(raw="{question}")
    ids = {posed(form, *turns)[0].id for turns in (TALK, TALK[1:], TALK[-1:], [("user", "1+1?")])}
    assert len(ids) == 4


def test_what_a_template_refuses_is_said() -> None:
    from jinja2 import TemplateError

    class Picky(WordTokenizer):
        def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
            raise TemplateError("roles must alternate")

    body = ChatCompletionRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}] * 2})
    with pytest.raises(ApiError, match="chat template refuses the conversation: roles must alternate"):
        problem_from_messages(body.messages, Prompt(PromptFormat(), Picky()))


def test_a_text_to_go_on_with_is_encoded_as_it_is() -> None:
    tokenizer = WordTokenizer()
    problem = problem_from_text("once upon a", Prompt(PromptFormat(user="{question} Think."), tokenizer))
    assert problem.prompt is not None
    assert tokenizer.decode(problem.prompt) == "<s> once upon a"


def test_a_message_that_came_from_here_may_be_sent_back() -> None:
    ours: dict[str, Any] = {"role": "assistant", "content": "2", "refusal": None, "tool_calls": None, "annotations": []}
    messages = [
        {"role": "user", "content": "1+1?"},
        ours | {"reasoning_content": "hm"},
        {"role": "user", "content": "?"},
    ]
    assert len(ChatCompletionRequest.model_validate({"model": "m", "messages": messages}).messages) == 3
