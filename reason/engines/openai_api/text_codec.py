"""Ids to text and back at the border to a server, so that what is sent on is what was said."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from decoding.core import Tokens

log = logging.getLogger(__name__)

_CONTEXT = 8  # tokens before a text that decide how it is spelled: some decoders treat the first ones differently


class Spelling:
    """A tokenizer that need not be the server's; where it is, ids here are most often those there.

    The text of a prefix and a reply is the text of the prefix and then the reply, or a warning says that it is not.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before_all = tuple(tokenizer.encode("", add_special_tokens=True))
        self._of_piece = lru_cache(maxsize=1 << 16)(lambda piece: self._encode(piece))
        self._warned = False

    @property
    def end(self) -> Tokens:
        """What ends a text, as its last token; empty where the tokenizer knows no such token."""
        token = self._tokenizer.eos_token_id
        return () if token is None else (int(token),)

    def text(self, tokens: Tokens) -> str:
        """The text to send. A token that tokenizers put before every text is left out: the server's does it again."""
        start = len(self._before_all) if tokens[: len(self._before_all)] == self._before_all else 0
        return self._decode(tokens[start:])

    def tokens(self, text: str, after: Tokens) -> Tokens:
        """The ids of what was said after these."""
        alone = self._encode(text)
        if self._reads(alone, text, after):
            return alone
        # A sentence-piece vocabulary writes a word at the beginning of a text differently.
        anchor, both = self._encode("x"), self._encode(f"x{text}")
        inside = both[len(anchor) :]
        if both[: len(anchor)] == anchor and self._reads(inside, text, after):
            return inside
        if not self._warned:
            log.warning("this tokenizer cannot write everything that is said, %r for one, and changes it", text[:80])
            self._warned = True
        return alone

    def of_pieces(self, pieces: Sequence[str], after: Tokens) -> Tokens | None:
        """One id for each piece, or None where this vocabulary has other pieces."""
        ids = [self._of_piece(piece) for piece in pieces]
        found = tuple(token for tokens in ids for token in tokens)
        ok = all(len(tokens) == 1 for tokens in ids) and self._reads(found, "".join(pieces), after)
        return found if ok else None

    def _reads(self, tokens: Tokens, text: str, after: Tokens) -> bool:
        context = after[-_CONTEXT:]
        return self._decode((*context, *tokens)) == self._decode(context) + text

    def _encode(self, text: str) -> Tokens:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, tokens: Tokens) -> str:
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)
