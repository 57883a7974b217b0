"""Trains the head of a router on features of recorded steps (`reason/routing/features.py`).

Computing the features takes minutes, so they are cached on disk; the head has a few thousand weights and takes seconds.
All pairs are used, so that its probability is calibrated.
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

from decoding.validation import require_count, require_not_negative, require_share
from reason.models.checkpoint import find_model
from reason.routing.features import FEATURE_NAMES, StepFeatureHead, path_features, signed_log
from reason.routing.pairs import StepPair
from reason.scorers.base import Floats
from reason.scorers.heads import TokenStatisticsHead
from reason.scorers.local_reader import open_local_reader
from reason.training.router import validate_router_recipe


@dataclass(frozen=True, kw_only=True)
class HeadRecipe:
    """Training settings of a head. `label`, `margin` and `held_out` are those of `router.RouterRecipe`; a margin well
    above 0 separates steps that the target model repairs from those that it would only write a little differently."""

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

    def __post_init__(self) -> None:
        for name in ("epochs", "hidden", "batch"):
            require_count(name, getattr(self, name), at_least=1)
        require_not_negative("decay", self.decay)
        require_share("dropout", self.dropout, below_one=True)
        validate_router_recipe(self)


def read_features(base: str, pairs: Sequence[StepPair], device: str, *, batch_size: int = 64) -> Floats:
    """Returns the features `[N, F]` of the small model's steps. Pairs of one problem share the reading of prefixes."""

    async def read_batches() -> list[Floats]:
        features: list[Floats] = []
        for i in range(0, len(pairs), batch_size):
            batch = pairs[i : i + batch_size]
            starts = [len(pair.prefix) - sum(pair.step_lengths) for pair in batch]
            outputs = await reader.encode([pair.prefix + pair.small_step for pair in batch], starts)
            for pair, rows in zip(batch, outputs, strict=True):
                features.append(path_features(np.split(rows.astype(np.float64), np.cumsum(pair.step_lengths)))[-1])
        return features

    source = find_model(base, key="--base").source
    opened = open_local_reader(source, TokenStatisticsHead(), (), device=device, dtype="float32", kv_mib=512)
    with closing(opened.reader) as reader:
        return np.array(asyncio.run(read_batches())).reshape(len(pairs), len(FEATURE_NAMES))


def read_features_cached(base: str, pairs: Sequence[StepPair], device: str, file: Path) -> Floats:
    """As `read_features`, from `file` if it holds the features of these very pairs. *Mutates* the file."""
    inputs = repr((base, FEATURE_NAMES, [(pair.prefix, pair.step_lengths, pair.small_step) for pair in pairs]))
    key = hashlib.sha256(inputs.encode()).hexdigest()
    if file.exists():
        with np.load(file) as saved:
            if saved["key"] == key:
                return np.asarray(saved["evidence"])
    features = read_features(base, pairs, device)
    np.savez(file, key=key, evidence=features)  # the key in files of earlier releases
    return features


def train_head(base: str, features: Floats, labels: Sequence[bool], recipe: HeadRecipe) -> StepFeatureHead:
    """Returns the head trained on features `[N, F]` and labels `[N]`, with its last weights.

    Raises: ValueError if only one label is there.
    """
    if len(set(labels)) < 2:
        raise ValueError("the target model is never, or always, better in these pairs; collect more")
    torch.manual_seed(recipe.seed)
    x = signed_log(features)
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    inputs = torch.tensor(np.clip((x - mean) / scale, -6, 6), dtype=torch.float32)
    targets = torch.tensor(labels, dtype=torch.float32)
    net = nn.Sequential(
        nn.Linear(len(FEATURE_NAMES), recipe.hidden), nn.ReLU(), nn.Dropout(recipe.dropout),
        nn.Linear(recipe.hidden, recipe.hidden), nn.ReLU(), nn.Dropout(recipe.dropout),
        nn.Linear(recipe.hidden, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    batches = -(-len(targets) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, total_steps=recipe.epochs * batches)
    for _ in range(recipe.epochs):
        for rows in torch.split(torch.randperm(len(targets)), recipe.batch):
            loss = binary_cross_entropy_with_logits(net(inputs[rows])[:, 0], targets[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    tensors = {"mean": mean.astype(np.float32), "scale": scale.astype(np.float32)}
    for i, layer in enumerate(layers):
        tensors[f"weight{i}"] = layer.weight.detach().numpy().T.copy()
        tensors[f"bias{i}"] = layer.bias.detach().numpy().copy()
    return StepFeatureHead(base, tensors)
