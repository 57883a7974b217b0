"""A tokenizer without a file: token ids are bytes. For a model whose vocabulary only its server knows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

BYTES = "bytes"
"""The `model.path` of a model without a checkpoint in this process."""

_END = 256
_MARK = "\x1e"  # between a conversation and the beginning of its answer; JSON has no such character


class ByteTokenizer:
    r"""Encodes text as UTF-8: ids 0 to 255 are bytes; 256 ends a text and decodes to nothing.

    Instead of a chat template it writes the conversation as JSON, for the server to render.

    >>> text = ByteTokenizer()
    >>> text.encode("é\n"), text.decode([195, 169, 256])
    ([195, 169, 10], 'é')
    """

    eos_token_id = _END
    bos_token: str | None = None
    bos_token_id: int | None = None
    chat_template = "the server's own"
    takes_request_fields = True
    all_special_ids = (ord(_MARK), _END)

    def get_vocab(self) -> dict[str, int]:
        """Returns a name for every id."""
        return {**{f"<0x{byte:02X}>": byte for byte in range(_END)}, "<end>": _END}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Returns the bytes. Half of a surrogate pair, which JSON allows and UTF-8 does not, becomes "?"."""
        del add_special_tokens
        return list(text.encode("utf-8", errors="replace"))

    def decode(self, token_ids: Sequence[int], **options: object) -> str:
        """Returns the text; bytes that are no UTF-8, such as half a character, become U+FFFD."""
        del options
        return bytes(token for token in token_ids if token < _END).decode("utf-8", errors="replace")

    def apply_chat_template(self, conversation: Sequence[Mapping[str, object]], **options: object) -> str:
        """Returns the conversation as JSON and a mark; `options` are for the server's template.

        `request_fields` among them are further fields of the request, such as its tools.
        """
        del options["tokenize"], options["add_generation_prompt"]
        more = cast(Mapping[str, object], options.pop("request_fields", {}))
        fields = {"messages": list(conversation), **({"chat_template_kwargs": options} if options else {}), **more}
        return json.dumps(fields, ensure_ascii=False) + _MARK


def parse_conversation(text: str) -> tuple[dict[str, object], str] | None:
    r"""Returns the fields of the conversation with which `apply_chat_template` began this text, and the text after it.
    None for a text without one.

    >>> prompt = ByteTokenizer().apply_chat_template(
    ...     [{"role": "user", "content": "1+1?"}], tokenize=False, add_generation_prompt=True
    ... )
    >>> parse_conversation(prompt + "It is"), parse_conversation("1+1?")
    (({'messages': [{'role': 'user', 'content': '1+1?'}]}, 'It is'), None)
    """
    head, mark, rest = text.partition(_MARK)
    return (json.loads(head), rest) if mark else None
