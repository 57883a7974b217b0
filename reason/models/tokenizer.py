"""Types a tokenizer and compares the vocabularies of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from decoding.validation import require_choice

VOCABULARY_MODES = ("same", "own")


class PretrainedTokenizer(Protocol):
    """The attributes and methods of a Hugging Face tokenizer that this project uses."""

    @property
    def bos_token(self) -> str | None: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_id(self) -> int | None: ...
    @property
    def chat_template(self) -> str | None: ...

    def get_vocab(self) -> dict[str, int]: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], **options: object) -> str: ...
    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: object) -> str: ...


def describe_difference(vocabulary: Mapping[str, int], other: Mapping[str, int]) -> str | None:
    """Names a token whose id differs between two vocabularies; None if equal tokens have equal ids.

    >>> describe_difference({"a": 0, "b": 1}, {"a": 0, "b": 2})
    "token 'b' is 1 in the one and 2 in the other"
    """
    if vocabulary == other:
        return None
    token = min(t for t in vocabulary.keys() | other.keys() if vocabulary.get(t) != other.get(t))
    ids = vocabulary.get(token, "missing"), other.get(token, "missing")
    return f"token {token!r} is {ids[0]} in the one and {ids[1]} in the other"


def require_same_vocabulary(
    path: str,
    vocabulary: Mapping[str, int],
    target_path: str,
    target_vocabulary: Mapping[str, int],
    *,
    what: str = "tokens",
) -> None:
    """Raises ValueError with both models and a differing token unless equal tokens have equal ids in both.

    `what` names the model's output that the target model reads.

    >>> require_same_vocabulary("A", {"a": 0, "b": 1}, "B", {"a": 0, "b": 2})
    Traceback (most recent call last):
    ValueError: A cannot draft tokens for B, their vocabularies differ: token 'b' is 1 in the one and 2 in the other
    """
    if difference := describe_difference(vocabulary, target_vocabulary):
        raise ValueError(f"{path} cannot draft {what} for {target_path}, their vocabularies differ: {difference}")


def require_step_vocabulary(
    mode: str,
    path: str,
    vocabulary: Mapping[str, int] | None,
    target_path: str,
    target_vocabulary: Mapping[str, int] | None,
) -> None:
    """Checks that the small model at `path` can write steps for the target model.

    mode   the setting small.vocabulary: `same` exchanges token ids, `own` exchanges text
    A vocabulary that is not known yet is None and not compared.

    Raises: ValueError for another mode, and for `same` where the vocabularies differ.
    """
    require_choice("vocabulary", mode, VOCABULARY_MODES)
    if mode == "own" or vocabulary is None or target_vocabulary is None:
        return
    try:
        require_same_vocabulary(path, vocabulary, target_path, target_vocabulary, what="steps")
    except ValueError as error:
        raise ValueError(f"{error}; with small.vocabulary=own they exchange text") from error
