"""An endless stream of padded training batches, made on the fly by worker processes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from reason.tasks.synthetic.draw import draw
from reason.training.examples import IGNORE, Encoder, Example, batches, write_solution
from search.seeds import derive_seed

_POOL = 8  # batches' worth of examples sorted by length at a time


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """What to train on.

    weights    families and how often each is drawn
    slip_rate  share of written solutions with one slip
    samples    a JSONL of labelled model samples (`Example` fields), or None
    share      share of examples taken from `samples`
    """

    weights: Mapping[str, float]
    slip_rate: float = 0.0
    samples: str | None = None
    share: float = 0.0


class ExampleStream(IterableDataset[dict[str, torch.Tensor]]):
    """Batches of `tokens_per_batch` padded tokens; every worker and every `seed` draws its own problems."""

    def __init__(self, tokenizer_dir: str, mixture: Mixture, *, tokens_per_batch: int, seed: int) -> None:
        self._tokenizer_dir = tokenizer_dir
        self._mixture = mixture
        self._tokens_per_batch = tokens_per_batch
        self._seed = seed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        from transformers import AutoTokenizer

        torch.set_num_threads(1)
        info = get_worker_info()
        rng = random.Random(derive_seed(self._seed, info.id if info else 0))
        tokenizer = AutoTokenizer.from_pretrained(self._tokenizer_dir)
        encode = Encoder(tokenizer)
        samples = _read(self._mixture.samples)
        while True:
            pool: list[Example] = []
            room = _POOL * self._tokens_per_batch
            while room > 0:
                pool.append(self._example(encode, samples, rng))
                room -= len(pool[-1].ids)
            for batch in batches(pool, self._tokens_per_batch, rng):
                yield collate(batch, tokenizer.pad_token_id)

    def _example(self, encode: Encoder, samples: list[Example], rng: random.Random) -> Example:
        if samples and rng.random() < self._mixture.share:
            return rng.choice(samples)
        exercise = draw(rng, "train", weights=self._mixture.weights)
        solution = write_solution(exercise, rng, slip_rate=self._mixture.slip_rate)
        return encode(exercise, solution, finished="boxed" in solution)


def collate(batch: list[Example], pad_id: int) -> dict[str, torch.Tensor]:
    """Right-padded tensors `[examples, longest]`; a causal model needs no mask for padding on the right."""

    def pad(rows: list[list[int]], value: int) -> torch.Tensor:
        longest = max(map(len, rows))
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows])

    return {
        "ids": pad([e.ids for e in batch], pad_id),
        "next_ids": pad([e.next_ids for e in batch], IGNORE),
        "verdicts": pad([e.verdicts for e in batch], IGNORE),
        "step_end": pad([list(map(int, e.step_end)) for e in batch], 0).bool(),
    }


def stream(
    tokenizer_dir: str, mixture: Mixture, *, tokens_per_batch: int, seed: int, workers: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The batches, prefetched by `workers` processes (0 = in this one)."""
    dataset = ExampleStream(tokenizer_dir, mixture, tokens_per_batch=tokens_per_batch, seed=seed)
    return iter(DataLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=4 if workers else None))


def _read(path: str | None) -> list[Example]:
    if path is None:
        return []
    with Path(path).open() as lines:
        return [Example(**json.loads(line)) for line in lines]
