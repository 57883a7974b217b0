"""A conversation, or a text to go on with, as a problem.

A model with a chat template is given the conversation as it is, with the instructions its configuration adds to the
system message and to the last question. A model that is asked with plain text (the bundled one) knows single questions
only: there the conversation becomes one text, system message first, every turn under its speaker's name. A single
message of the user is in both cases the question that `scripts/solve.py` would be asked. The scorer reads the one text.
"""

from __future__ import annotations

from collections.abc import Sequence

from reason.problem import Problem
from reason.prompt import Prompt
from reason.serve.errors import ApiError
from reason.serve.schemas import Message


def from_messages(messages: Sequence[Message], prompt: Prompt) -> Problem:
    """The problem a conversation poses. Raises: ApiError 400 if it does not end with a question, or the template
    refuses it."""
    last = messages[-1]
    if last.role != "user" or not last.content.strip():
        raise ApiError(
            400, "the last message must be the user's, and not empty", param="messages", code="invalid_value"
        )
    turns = [{"role": _role(message), "content": message.content} for message in messages]
    question = joined(turns)
    if len(turns) == 1 or prompt.form.raw is not None:
        return Problem.ask(question, prompt=prompt.encode(question))
    try:
        return Problem.ask(question, prompt=prompt.encode_chat(turns))
    except ValueError as error:
        raise ApiError(400, str(error), param="messages", code="invalid_value") from error


def from_text(text: str, prompt: Prompt) -> Problem:
    """The problem of going on with a text as it is. Raises: ApiError 400 for an empty one."""
    if not text.strip():
        raise ApiError(400, "prompt must not be empty", param="prompt", code="invalid_value")
    return Problem.ask(text, prompt=prompt.encode_text(text))


def joined(turns: Sequence[dict[str, str]]) -> str:
    r"""A conversation as one text; one turn of the user is left as it is.

    >>> joined([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}])
    'Be brief.\n\n1+1?'
    >>> joined([{"role": r, "content": c} for r, c in (("user", "1+1?"), ("assistant", "2"), ("user", "and 1?"))])
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


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role
