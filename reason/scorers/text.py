"""Text of a step to token ids, in a way that does not depend on what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding.core import Tokens


def one_line(text: str) -> str:
    """The text on one line, for models whose step tag is a newline or stands before one.

    >>> one_line(" Let x = 2.\\n\\n  So 2x = 4.\\n\\n")
    'Let x = 2. So 2x = 4.'
    """
    return " ".join(line for raw in text.splitlines() if (line := raw.strip()))


def encode(tokenizer: Any, text: str) -> Tokens:
    """Token ids of `text` alone: no BOS or EOS added."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def encode_after(tokenizer: Any, anchor: str, text: str) -> Tokens:
    """Token ids of `text` as they are when `anchor` stands before it.

    Sentence-piece vocabularies write a word differently at the start of a text, so a continuation must not be
    encoded alone.

    Raises: ValueError if the two melt together, so that the seam is inside a token.
    """
    before, both = encode(tokenizer, anchor), encode(tokenizer, anchor + text)
    if both[: len(before)] != before:
        raise ValueError(
            f"this tokenizer joins {anchor[-20:]!r} and {text[:20]!r} in one token: steps cannot be scored"
        )
    return both[len(before) :]


def token_id(tokenizer: Any, token: str) -> int:
    """The id of one vocabulary entry. Raises: ValueError if the tokenizer does not have it."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    if token not in vocabulary:
        raise ValueError(f"this tokenizer has no token {token!r}, so it does not belong to this kind of reward model")
    return vocabulary[token]


def only_token(tokenizer: Any, text: str) -> int:
    """The id of a text that is one token. Raises: ValueError if it is several."""
    ids = encode(tokenizer, text)
    if len(ids) != 1:
        raise ValueError(f"{text!r} must be one token of this tokenizer, it is {len(ids)}: {ids}")
    return ids[0]


def render_chat(tokenizer: Any, messages: Sequence[tuple[str, str]]) -> str:
    """The chat of (role, content) pairs as text, up to where the assistant would begin to speak.

    Raises: ValueError if the tokenizer brings no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("this reward model's format is a chat, but its tokenizer brings no chat template")
    rows = [{"role": role, "content": content} for role, content in messages]
    text = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    return text
