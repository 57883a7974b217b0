"""Converts ids to text and back at the border to a server, so that a prefix sent later is the text received before."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from decoding.core import Tokens

log = logging.getLogger(__name__)

_NUM_CONTEXT = 8  # tokens before a text that its decoding depends on: some decoders treat the first tokens differently


class CodecTokenizer(Protocol):
    """The part of a tokenizer that is used here."""

    @property
    def eos_token_id(self) -> int | None: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str: ...


class TextCodec:
    """Encodes and decodes with a tokenizer that need not be the server's; where it is, ids mostly equal the server's.

    The text of a prefix and a reply is the text of the prefix followed by the reply; a warning says where it is not.
    """

    def __init__(self, tokenizer: CodecTokenizer) -> None:
        self._tokenizer = tokenizer
        self._start_tokens = tuple(tokenizer.encode("", add_special_tokens=True))
        self._encode_piece = lru_cache(maxsize=1 << 16)(lambda piece: self._encode(piece))
        self._has_warned = False

    @property
    def end_tokens(self) -> Tokens:
        """The token that ends a text, as a tuple; empty where the tokenizer has none."""
        token = self._tokenizer.eos_token_id
        return () if token is None else (int(token),)

    def decode_prefix(self, tokens: Tokens) -> str:
        """Returns the text to send, without the token that tokenizers put first: the server's adds it again."""
        start = len(self._start_tokens) if tokens[: len(self._start_tokens)] == self._start_tokens else 0
        return self._decode(tokens[start:])

    def encode_reply(self, text: str, prefix: Tokens) -> Tokens:
        """Returns the ids of a text that follows `prefix`."""
        alone = self._encode(text)
        if self._decodes_to(alone, text, prefix):
            return alone
        # A SentencePiece vocabulary encodes a word at the beginning of a text differently, so encode it after an "x".
        anchor, both = self._encode("x"), self._encode(f"x{text}")
        inside = both[len(anchor) :]
        if both[: len(anchor)] == anchor and self._decodes_to(inside, text, prefix):
            return inside
        if not self._has_warned:
            log.warning(
                "this tokenizer cannot encode all of the server's text, for example %r, and changes it", text[:80]
            )
            self._has_warned = True
        return alone

    def encode_pieces(self, pieces: Sequence[str], prefix: Tokens) -> Tokens | None:
        """Returns one id for each of the server's tokens, or None where this vocabulary has other tokens."""
        ids = [self._encode_piece(piece) for piece in pieces]
        flat = tuple(token for tokens in ids for token in tokens)
        is_one_each = all(len(tokens) == 1 for tokens in ids)
        return flat if is_one_each and self._decodes_to(flat, "".join(pieces), prefix) else None

    def _decodes_to(self, tokens: Tokens, text: str, prefix: Tokens) -> bool:
        context = prefix[-_NUM_CONTEXT:]
        return self._decode((*context, *tokens)) == self._decode(context) + text

    def _encode(self, text: str) -> Tokens:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, tokens: Tokens) -> str:
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)
