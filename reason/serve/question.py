"""Converts a conversation, or a text to continue, into a problem.

A model with a chat template gets the conversation as it is, with the instructions that its configuration adds to the
system message and to every question. A model with a plain-text prompt (the bundled one) knows single questions
only: the conversation becomes one text, system message first, every message after its role. A single user message is
in both cases the same question as for `scripts/solve.py`. The scorer reads the one text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from reason.problem import Problem
from reason.prompt import Prompt
from reason.serve.errors import ApiError
from reason.serve.messages import CalledTool, ChatMessage
from reason.serve.reply_format import ReplyFormat


def problem_from_messages(
    messages: Sequence[ChatMessage], prompt: Prompt, reply_format: ReplyFormat | None = None
) -> Problem:
    """Returns the problem of a conversation; `reply_format` is what the reply must be, None for any text.

    Raises: ApiError 400 if it does not end with a user's message or a tool's, or the chat template refuses it.
    """
    last = messages[-1]
    if last.role not in ("user", "tool") or (last.role == "user" and not last.content.strip()):
        message = "the last message must have the role user and text, or the role tool"
        raise ApiError(400, message, param="messages", code="invalid_value")
    on_server = prompt.is_rendered_by_server
    turns = [_to_turn(message, as_text=on_server) for message in messages]
    if reply_format is not None and reply_format.instruction and not on_server:
        turns = [{"role": "system", "content": reply_format.instruction}, *turns]
    question = join_messages(turns)
    if prompt.format.raw is not None or (len(turns) == 1 and reply_format is None):
        return Problem.from_question(question, prompt=prompt.encode(question))
    more: Mapping[str, object] = {}
    if reply_format is not None:
        # what `model.prompt.user` adds to a question asks for another form of answer
        more = {"request_fields": reply_format.request_fields} if on_server else reply_format.template_fields
    try:
        tokens = prompt.encode_chat(turns, as_question=reply_format is None, more=more)
        return Problem.from_question(question, prompt=tokens)
    except ValueError as error:
        raise ApiError(400, str(error), param="messages", code="invalid_value") from error


def problem_from_text(text: str, prompt: Prompt) -> Problem:
    """Returns the problem of continuing `text` as it is.

    Raises: ApiError 400 for an empty one, and where the model takes conversations alone.
    """
    if not text.strip():
        raise ApiError(400, "prompt must not be empty", param="prompt", code="invalid_value")
    if prompt.is_rendered_by_server:
        message = "the model of this server takes conversations, not texts: use /v1/chat/completions"
        raise ApiError(400, message, param="prompt", code="unsupported_field")
    return Problem.from_question(text, prompt=prompt.encode_text(text))


def join_messages(turns: Sequence[dict[str, object]]) -> str:
    r"""Joins a conversation into one text; a single user message is left as it is.

    >>> join_messages([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}])
    'Be brief.\n\n1+1?'
    >>> texts = (("user", "1+1?"), ("assistant", "2"), ("user", "and 1?"))
    >>> join_messages([{"role": role, "content": content} for role, content in texts])
    'User: 1+1?\n\nAssistant: 2\n\nUser: and 1?'
    """
    spoken = [turn for turn in turns if turn["role"] != "system"]
    texts = [
        str(turn["content"])
        if turn["role"] == "system" or len(spoken) == 1
        else f"{str(turn['role']).title()}: {turn['content']}{_join_calls(turn)}"
        for turn in turns
    ]
    return "\n\n".join(texts)


def _join_calls(turn: dict[str, object]) -> str:
    calls = turn.get("tool_calls")
    return "" if calls is None else f" {json.dumps(calls, ensure_ascii=False)}"


def _to_turn(message: ChatMessage, *, as_text: bool) -> dict[str, object]:
    """Returns a message for the chat template; the arguments of its tool calls as text, or as what they are."""
    turn: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content,
    }
    if message.tool_calls:
        turn["tool_calls"] = [_to_call(call, as_text=as_text) for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _to_call(call: CalledTool, *, as_text: bool) -> dict[str, object]:
    arguments: object = call.function.arguments
    if not as_text:
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError):
            raise ApiError(
                400,
                f"the arguments of the tool call {call.id!r} are no JSON",
                param="messages",
                code="invalid_value",
            ) from None
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
