"""Converts a conversation, or a text to continue, into a problem.

A model with a chat template gets the conversation as it is, with the instructions that its configuration adds to the
system message and to the last question. A model with a plain-text prompt (the bundled one) knows single questions
only: the conversation becomes one text, system message first, every message after its role. A single user message is
in both cases the same question as for `scripts/solve.py`. The scorer reads the one text.
"""

from __future__ import annotations

from collections.abc import Sequence

from reason.problem import Problem
from reason.prompt import Prompt
from reason.serve.errors import ApiError
from reason.serve.schemas import ChatMessage


def problem_from_messages(messages: Sequence[ChatMessage], prompt: Prompt) -> Problem:
    """Returns the problem of a conversation.

    Raises: ApiError 400 if it does not end with a user message, or the chat template refuses it.
    """
    last = messages[-1]
    if last.role != "user" or not last.content.strip():
        raise ApiError(400, "the last message must have the role user and text", param="messages", code="invalid_value")
    turns = [{"role": _template_role(message), "content": message.content} for message in messages]
    question = join_messages(turns)
    if len(turns) == 1 or prompt.format.raw is not None:
        return Problem.from_question(question, prompt=prompt.encode(question))
    try:
        return Problem.from_question(question, prompt=prompt.encode_chat(turns))
    except ValueError as error:
        raise ApiError(400, str(error), param="messages", code="invalid_value") from error


def problem_from_text(text: str, prompt: Prompt) -> Problem:
    """Returns the problem of continuing `text` as it is. Raises: ApiError 400 for an empty one."""
    if not text.strip():
        raise ApiError(400, "prompt must not be empty", param="prompt", code="invalid_value")
    return Problem.from_question(text, prompt=prompt.encode_text(text))


def join_messages(turns: Sequence[dict[str, str]]) -> str:
    r"""Joins a conversation into one text; a single user message is left as it is.

    >>> join_messages([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}])
    'Be brief.\n\n1+1?'
    >>> texts = (("user", "1+1?"), ("assistant", "2"), ("user", "and 1?"))
    >>> join_messages([{"role": role, "content": content} for role, content in texts])
    'User: 1+1?\n\nAssistant: 2\n\nUser: and 1?'
    """
    spoken = [turn for turn in turns if turn["role"] != "system"]
    texts = [
        turn["content"]
        if turn["role"] == "system" or len(spoken) == 1
        else f"{turn['role'].title()}: {turn['content']}"
        for turn in turns
    ]
    return "\n\n".join(texts)


def _template_role(message: ChatMessage) -> str:
    return "system" if message.role == "developer" else message.role
