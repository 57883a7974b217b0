"""Runs the local engine and transformers as two of the engines that are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decoding.core import Tokens
from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.baselines import (
    BranchWorkload,
    TransformersModel,
    make_generation_config,
    make_requests,
    open_cold_engine,
)
from reason.bench.peers.interface import Decode

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LocalPeer:
    """Implements `PeerEngine` with the local engine without speculation."""

    backend: HFBackend

    @property
    def description(self) -> str:
        kind, dtype = self.backend.decoder_kind, _name_dtype(self.backend.dtype)
        return f"{kind} decoder, {dtype}, speculation off, the prompt is read once"

    @contextmanager
    def open_run(self, workload: BranchWorkload, *, greedy: bool = False) -> Iterator[Decode]:
        engine, requests = open_cold_engine(self.backend, workload), make_requests(workload, 0.0 if greedy else 1.0)

        def decode() -> list[Tokens]:
            return [generation.tokens for generation in asyncio.run(engine.generate(requests))]

        try:
            yield decode
        finally:
            engine.close()


@dataclass(frozen=True)
class TransformersPeer:
    """Implements `PeerEngine` with `model.generate`: a batch of equal rows, each with keys and values of its own."""

    model: TransformersModel

    @property
    def description(self) -> str:
        import transformers

        dtype = _name_dtype(self.model.dtype)
        return f"transformers {transformers.__version__}, {dtype}, generate, the prompt is read once per branch"

    @contextmanager
    def open_run(self, workload: BranchWorkload, *, greedy: bool = False) -> Iterator[Decode]:
        import torch

        settings = make_generation_config(workload)
        if greedy:
            settings.do_sample, settings.min_new_tokens = False, None  # a minimum would keep a text from ending
        ids = torch.tensor([workload.prompt] * workload.branches)

        def decode() -> list[Tokens]:
            rows = self.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
            return [tuple(row) for row in rows[:, len(workload.prompt) :].tolist()]

        yield decode


def _name_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
