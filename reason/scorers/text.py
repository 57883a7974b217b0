"""Encodes text so that the token ids of a step do not depend on the text after it."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.core import Tokens
from reason.models.tokenizer import PretrainedTokenizer


def join_lines(text: str) -> str:
    """Puts the text on one line, for models whose step tag is a newline or stands before one.

    >>> join_lines(" Let x = 2.\\n\\n  So 2x = 4.\\n\\n")
    'Let x = 2. So 2x = 4.'
    """
    return " ".join(line for raw in text.splitlines() if (line := raw.strip()))


def encode_text(tokenizer: PretrainedTokenizer, text: str) -> Tokens:
    """Returns the ids of `text` alone: no BOS or EOS added."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def encode_after(tokenizer: PretrainedTokenizer, anchor: str, text: str) -> Tokens:
    """Returns the ids of `text` as they are behind `anchor`.

    Sentence-piece vocabularies encode a word differently at the start of a text, so that a continuation must not be
    encoded alone.

    Raises: ValueError if a token spans the seam.
    """
    before, both = encode_text(tokenizer, anchor), encode_text(tokenizer, anchor + text)
    if both[: len(before)] != before:
        raise ValueError(
            f"this tokenizer joins {anchor[-20:]!r} and {text[:20]!r} in one token: steps cannot be scored"
        )
    return both[len(before) :]


def token_id(tokenizer: PretrainedTokenizer, token: str) -> int:
    """Returns the id of one vocabulary entry. Raises: ValueError if the tokenizer does not have it."""
    vocabulary = tokenizer.get_vocab()
    if token not in vocabulary:
        raise ValueError(f"this tokenizer has no token {token!r}, so it does not belong to this kind of reward model")
    return vocabulary[token]


def single_token_id(tokenizer: PretrainedTokenizer, text: str) -> int:
    """Returns the id of a text that is one token. Raises: ValueError if it is several."""
    ids = encode_text(tokenizer, text)
    if len(ids) != 1:
        raise ValueError(f"{text!r} must be one token of this tokenizer, it is {len(ids)}: {ids}")
    return ids[0]


def render_chat(tokenizer: PretrainedTokenizer, messages: Sequence[tuple[str, str]]) -> str:
    """Renders (role, content) pairs with the chat template, up to the beginning of the assistant's answer.

    Raises: ValueError if the tokenizer has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("this reward model's format is a chat, but its tokenizer brings no chat template")
    conversation = [{"role": role, "content": content} for role, content in messages]
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    return text
