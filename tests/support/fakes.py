"""Small test doubles: a byte tokenizer, two toy models as backends, and an engine that generates given texts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.core import FinishReason, Generation, GenerationRequest, Tokens, Usage
from decoding.kv.slots import pad_slots
from decoding.model.backend import TokenBatch
from decoding.model.segments import SegmentTiles
from decoding.stats import DecoderKind, EngineStats

Hashes = npt.NDArray[np.uint64]


class ToyTokenizer:
    """Ids 0..255 are bytes; `eos_id` is 256 and reads as nothing."""

    vocab_size = 257
    eos_id = 256

    def encode(self, text: str) -> Tokens:
        return tuple(text.encode())

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(t for t in tokens if t < 256).decode(errors="replace")


def mix_bits(x: Hashes) -> Hashes:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed: Hashes = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed


class HashBackend:
    """Logits are a hash of exactly the (token, position) pairs that a token can see: wrong slots or masks change them.

    They are summed in wrapping integers, so results are bit-identical however tokens are packed.
    `scale=0` gives the uniform model. `num_tokens` counts the tokens fed; the forward pass `fail_at` raises.
    """

    max_positions = 4096
    kv_bytes_per_token = 1
    attention_seconds = 0.0
    segment_tiles: SegmentTiles | None = None
    decoder_kind: DecoderKind = "eager"

    def __init__(self, vocab_size: int = 32, scale: float = 2.0) -> None:
        self.vocab_size, self.scale = vocab_size, scale
        self.num_tokens = self.forwards = 0
        self.fail_at: int | None = None

    def new_kv_pool(self, capacity: int) -> Tensor:
        return torch.zeros(capacity + 1, dtype=torch.int64)

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        self.forwards += 1
        if self.forwards == self.fail_at:
            raise RuntimeError("the toy broke")
        assert (batch.slots_T > 0).all()
        assert len(np.unique(batch.slots_T)) == len(batch.slots_T)
        self.num_tokens += len(batch.slots_T)
        hashes = pool.numpy().view(np.uint64)
        hashes[batch.slots_T] = mix_bits(
            batch.tokens_T.astype(np.uint64) * np.uint64(65537)
            + mix_bits(batch.positions_T.astype(np.uint64) + np.uint64(1))
        )
        sums = np.zeros(len(batch.tokens_T), dtype=np.uint64)
        for block in batch.blocks:
            shared = np.array([hashes[slots].sum(dtype=np.uint64) for slots in block.shared])
            private_NP = pad_slots(block.private)
            private = (hashes[private_NP][:, None, :] * block.find_visible()).sum(2, dtype=np.uint64)
            each = np.repeat(shared, len(private) // len(shared))[:, None] + private
            rows = each.reshape(-1)
            sums[block.first : block.first + block.count] = rows if block.real_rows is None else rows[block.real_rows]
        return torch.from_numpy(sums[batch.logits_indices].view(np.int64))

    def apply_head(self, hidden: Tensor) -> Tensor:
        columns = mix_bits(np.arange(1, self.vocab_size + 1, dtype=np.uint64))
        bits = mix_bits(hidden.numpy().view(np.uint64)[:, None] + columns)
        return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0).float() * self.scale


class ScriptedBackend(HashBackend):
    """Predicts `script[i]` at absolute position i, whatever came before."""

    def __init__(self, script: Sequence[int], vocab_size: int = 257) -> None:
        super().__init__(vocab_size)
        self.script = np.array(script)

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        super().forward(batch, pool)
        positions = np.minimum(batch.positions_T[batch.logits_indices] + 1, len(self.script) - 1)
        return torch.from_numpy(self.script[positions])

    def apply_head(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(hidden, self.vocab_size).float() * 50.0


class EngineWithoutModel:
    """Base of test engines that run no model: no counters and nothing to close."""

    @property
    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None:
        return None

    def assert_invariants(self) -> None:
        return None


class ScriptedEngine(EngineWithoutModel):
    """Continues any prefix with the next of `texts` (in turn), one byte a token, up to eos or a stop string."""

    def __init__(self, texts: Sequence[str], tokenizer: ToyTokenizer | None = None) -> None:
        self.texts, self.tokenizer = list(texts), tokenizer or ToyTokenizer()
        self.requests: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        await asyncio.sleep(0)
        return [self._continue_request(request) for request in requests]

    def _continue_request(self, request: GenerationRequest) -> Generation:
        text = self.texts[len(self.requests) % len(self.texts)]
        self.requests.append(request)
        cuts = [text.index(stop) + len(stop) for stop in request.params.stop if stop in text]
        tokens = self.tokenizer.encode(text)
        finish: FinishReason = "eos"
        if cuts:
            tokens, finish = self.tokenizer.encode(text[: min(cuts)]), "stop"
        else:
            tokens = (*tokens, self.tokenizer.eos_id)
        if len(tokens) > request.params.max_tokens:
            tokens, finish = tokens[: request.params.max_tokens], "length"
        usage = Usage(calls=1, tokens=len(tokens), prompt_tokens=len(request.prefix), forwards=len(tokens))
        return Generation(tokens=tokens, logprobs=(-1.0,) * len(tokens), finish=finish, usage=usage)


class WordTokenizer:
    """Words are tokens and a leading space is dropped when decoding, as SentencePiece does."""

    chat_template: str | None = "given"

    def __init__(self) -> None:
        self.words: list[str] = []
        self.templated: dict[str, object] = {}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        words = (["<s>"] if add_special_tokens else []) + text.split(" ")
        self.words += [word for word in words if word not in self.words]
        return [self.words.index(word) for word in words]

    def decode(self, token_ids: Sequence[int], **_: object) -> str:
        return " ".join(self.words[i] for i in token_ids)

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: object) -> str:
        self.templated = kwargs
        return " ".join(f"[{m['role']}] {m['content']}" for m in conversation) + " [assistant] "
