"""Train the head of a router on the evidence a language model has of recorded steps (`reason/routing/features.py`).

Reading the steps takes minutes and is kept on disk; the head has a few thousand weights and takes seconds. All pairs
are used, so that the probability is the share it says.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from reason.models.checkpoint import find_model
from reason.routing.features import NAMES, EvidenceHead, evidence, squashed
from reason.routing.pairs import Pair
from reason.scorers.base import Floats
from reason.scorers.local_reader import open_reader


@dataclass(frozen=True, kw_only=True)
class HeadRecipe:
    """How a head is trained. `label`, `margin` and `held_out` as in `router.RouterRecipe`; a margin well above 0 tells
    steps that the large model repairs from those that it would only write a little differently."""

    epochs: int = 60
    hidden: int = 32
    rate: float = 3e-3
    decay: float = 1e-2
    dropout: float = 0.1
    batch: int = 256
    label: str = "score"
    margin: float = 0.25
    held_out: float = 0.1
    seed: int = 0


def gather(base: str, pairs: Sequence[Pair], device: str, *, at_once: int = 64) -> Floats:
    """The evidence `[N, F]` of every draft step. Pairs of one problem share what is read of its prefixes."""

    async def read() -> list[Floats]:
        found: list[Floats] = []
        for i in range(0, len(pairs), at_once):
            some = pairs[i : i + at_once]
            starts = [len(pair.prefix) - sum(pair.before) for pair in some]
            read = await reader.read([pair.prefix + pair.draft for pair in some], starts)
            for pair, rows in zip(some, read, strict=True):
                found.append(evidence(np.split(rows.astype(np.float64), np.cumsum(pair.before))))
        return found

    reader, _ = open_reader(
        find_model(base, key="--base").source, "token_statistics", (), device=device, dtype="float32", kv_mib=512
    )
    with closing(reader):
        return np.array(asyncio.run(read())).reshape(len(pairs), len(NAMES))


def gather_once(base: str, pairs: Sequence[Pair], device: str, file: Path) -> Floats:
    """As `gather`, from `file` if these very pairs were read before. *Mutates* the file."""
    read = repr((base, NAMES, [(pair.prefix, pair.before, pair.draft) for pair in pairs]))
    key = hashlib.sha256(read.encode()).hexdigest()
    if file.exists():
        with np.load(file) as saved:
            if saved["key"] == key:
                return np.asarray(saved["evidence"])
    found = gather(base, pairs, device)
    np.savez(file, key=key, evidence=found)
    return found


def train_head(base: str, found: Floats, better: Sequence[bool], recipe: HeadRecipe) -> EvidenceHead:
    """The head, from evidence `[N, F]` and labels `[N]`; the last weights are the trained ones.

    Raises: ValueError if only one label is there.
    """
    if len(set(better)) < 2:
        raise ValueError("the large model is never, or always, better in these pairs; collect more")
    torch.manual_seed(recipe.seed)
    x = squashed(found)
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    inputs = torch.tensor(np.clip((x - mean) / scale, -6, 6), dtype=torch.float32)
    labels = torch.tensor(better, dtype=torch.float32)
    net = nn.Sequential(
        nn.Linear(len(NAMES), recipe.hidden), nn.ReLU(), nn.Dropout(recipe.dropout),
        nn.Linear(recipe.hidden, recipe.hidden), nn.ReLU(), nn.Dropout(recipe.dropout),
        nn.Linear(recipe.hidden, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    batches = -(-len(labels) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, total_steps=recipe.epochs * batches)
    for _ in range(recipe.epochs):
        for rows in torch.split(torch.randperm(len(labels)), recipe.batch):
            loss = binary_cross_entropy_with_logits(net(inputs[rows])[:, 0], labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    tensors = {"mean": mean.astype(np.float32), "scale": scale.astype(np.float32)}
    for i, layer in enumerate(layers):
        tensors[f"weight{i}"] = layer.weight.detach().numpy().T.copy()
        tensors[f"bias{i}"] = layer.bias.detach().numpy().copy()
    return EvidenceHead(base, tensors)
