"""Small stand-ins: a byte tokenizer, two toy models as backends, and an engine that says what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from decoding.core import Generation, GenerationRequest, Spent, Tokens
from decoding.model.backend import RowBatch


class ByteTokenizer:
    """Ids 0..255 are bytes; `eos_id` is 256 and reads as nothing."""

    vocab_size = 257
    eos_id = 256

    def encode(self, text: str) -> Tokens:
        return tuple(text.encode())

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(t for t in tokens if t < 256).decode(errors="replace")


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed: np.ndarray = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed


class HashBackend:
    """Logits are a hash of exactly the (token, position) pairs a row can see: any slip of pages or masks shows.

    What a row sees is summed in wrapping integers, so results are bit-identical however rows are packed.
    `scale=0` gives the uniform model. `rows` counts what was fed; `fail_at` raises in that forward pass.
    """

    max_positions = 4096
    page_bytes = 1
    attention_seconds = 0.0

    def __init__(self, vocab_size: int = 32, scale: float = 2.0) -> None:
        self.vocab_size, self.scale = vocab_size, scale
        self.rows = self.forwards = 0
        self.fail_at: int | None = None

    def new_pool(self, pages: int) -> Any:
        return np.zeros(pages + 1, dtype=np.uint64)

    def forward(self, batch: RowBatch, pool: Any) -> Any:
        self.forwards += 1
        if self.forwards == self.fail_at:
            raise RuntimeError("the toy broke")
        assert (batch.slots_T > 0).all()
        assert len(np.unique(batch.slots_T)) == len(batch.slots_T)
        self.rows += len(batch.slots_T)
        pool[batch.slots_T] = _mix(
            batch.tokens_T.astype(np.uint64) * np.uint64(65537)
            + _mix(batch.positions_T.astype(np.uint64) + np.uint64(1))
        )
        seen = np.zeros(len(batch.tokens_T), dtype=np.uint64)
        for block in batch.blocks:
            counts = np.arange(block.shared_GS.shape[1]) < block.shared_len_G[:, None]
            shared = (pool[block.shared_GS] * counts).sum(1, dtype=np.uint64)
            private = (pool[block.private_NP][:, None, :] * block.visible_NRP).sum(2, dtype=np.uint64)
            each = np.repeat(shared, len(private) // len(shared))[:, None] + private
            rows = each.reshape(-1)
            seen[block.first : block.first + block.count] = rows if block.kept is None else rows[block.kept]
        return seen[batch.wanted_W]

    def head(self, hidden: Any) -> Any:
        bits = _mix(hidden[:, None] + _mix(np.arange(1, self.vocab_size + 1, dtype=np.uint64)))
        return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0).float() * self.scale


class ScriptedBackend(HashBackend):
    """Says `script[i]` at absolute position i, whatever came before."""

    def __init__(self, script: Sequence[int], vocab_size: int = 257) -> None:
        super().__init__(vocab_size)
        self.script = np.array(script)

    def forward(self, batch: RowBatch, pool: Any) -> Any:
        super().forward(batch, pool)
        return self.script[np.minimum(batch.positions_T[batch.wanted_W] + 1, len(self.script) - 1)]

    def head(self, hidden: Any) -> Any:
        return torch.nn.functional.one_hot(torch.from_numpy(hidden), self.vocab_size).float() * 50.0


class ScriptedEngine:
    """Continues any prefix with the next of `texts` (in turn), one byte a token, ended by eos unless a stop cuts it."""

    def __init__(self, texts: Sequence[str], tokenizer: ByteTokenizer | None = None) -> None:
        self.texts, self.tokenizer = list(texts), tokenizer or ByteTokenizer()
        self.requests: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        await asyncio.sleep(0)
        return [self._one(request) for request in requests]

    def _one(self, request: GenerationRequest) -> Generation:
        text = self.texts[len(self.requests) % len(self.texts)]
        self.requests.append(request)
        cuts = [text.index(stop) + len(stop) for stop in request.params.stop if stop in text]
        tokens, finish = self.tokenizer.encode(text), "eos"
        if cuts:
            tokens, finish = self.tokenizer.encode(text[: min(cuts)]), "stop"
        else:
            tokens = (*tokens, self.tokenizer.eos_id)
        if len(tokens) > request.params.max_tokens:
            tokens, finish = tokens[: request.params.max_tokens], "length"
        spent = Spent(calls=1, tokens=len(tokens), prompt_tokens=len(request.prefix), forwards=len(tokens))
        return Generation(tokens=tokens, logprobs=(-1.0,) * len(tokens), finish=finish, spent=spent)  # type: ignore[arg-type]
