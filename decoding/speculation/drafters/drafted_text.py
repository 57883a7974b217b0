"""A branch in the cache of a draft model."""

from __future__ import annotations

import numpy as np

from decoding.core import Tokens
from decoding.kv.sequence import TokenSequence
from decoding.speculation.drafters.source import Floats, Ints


class DraftedText(TokenSequence):
    """Its tokens with their slots; `top` are the candidates after its last token, once all are computed."""

    def __init__(self, request_id: int, tokens: Tokens) -> None:
        super().__init__(request_id, tokens)
        self.top: tuple[Ints, Floats] = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
        self.inserted = False
