"""Text as bytes, for a model whose vocabulary only its server knows: a tokenizer that needs no file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

BYTES = "bytes"
"""The `model.path` of a model that has no checkpoint here."""

_END = 256
_MARK = "\x1e"  # between a conversation and what was said of the answer; JSON has no such character


class ByteText:
    r"""Ids 0 to 255 are the bytes of UTF-8 text; 256 ends a text and reads as nothing.

    What stands in for a chat template keeps the conversation as it is, for the server to render.

    >>> text = ByteText()
    >>> text.encode("é\n"), text.decode([195, 169, 256])
    ([195, 169, 10], 'é')
    """

    eos_token_id = _END
    chat_template = "the server's own"

    def get_vocab(self) -> dict[str, int]:
        """A name for every id."""
        return {**{f"<0x{byte:02X}>": byte for byte in range(_END)}, "<end>": _END}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The bytes. A half of a surrogate pair, which JSON can say and UTF-8 cannot, becomes a question mark."""
        del add_special_tokens
        return list(text.encode("utf-8", errors="replace"))

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        """The text; what is no UTF-8, such as half a character, reads as U+FFFD."""
        del kwargs
        return bytes(token for token in token_ids if token < _END).decode("utf-8", errors="replace")

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
        """The conversation as JSON, ended by a mark; `options` are for the server's template."""
        del options["tokenize"], options["add_generation_prompt"]
        fields = {"messages": list(conversation), **({"chat_template_kwargs": options} if options else {})}
        return json.dumps(fields, ensure_ascii=False) + _MARK


def conversation_of(text: str) -> tuple[dict[str, Any], str] | None:
    r"""The fields of a conversation that `apply_chat_template` began this text with, and what was said since. None
    where it began with none.

    >>> asked = ByteText().apply_chat_template(
    ...     [{"role": "user", "content": "1+1?"}], tokenize=False, add_generation_prompt=True
    ... )
    >>> conversation_of(asked + "It is"), conversation_of("1+1?")
    (({'messages': [{'role': 'user', 'content': '1+1?'}]}, 'It is'), None)
    """
    head, mark, said = text.partition(_MARK)
    return (json.loads(head), said) if mark else None
