"""An endless stream of padded training batches, made on the fly by worker processes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from reason.tasks.synthetic.draw import draw
from reason.tasks.synthetic.error_injection import SteadyPen
from reason.training.examples import IGNORE, NONE, Encoder, Example, batches
from search.seeds import derive_seed

_POOL = 8  # batches' worth of examples sorted by length at a time


class ExampleStream(IterableDataset[dict[str, torch.Tensor]]):
    """Batches of `tokens_per_batch` padded tokens; every worker and every `seed` draws its own problems."""

    def __init__(self, tokenizer_dir: str, weights: Mapping[str, float], *, tokens_per_batch: int, seed: int) -> None:
        self._tokenizer_dir = tokenizer_dir
        self._weights = weights
        self._tokens_per_batch = tokens_per_batch
        self._seed = seed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        from transformers import AutoTokenizer

        info = get_worker_info()
        rng = random.Random(derive_seed(self._seed, info.id if info else 0))
        tokenizer = AutoTokenizer.from_pretrained(self._tokenizer_dir)
        encode = Encoder(tokenizer)
        while True:
            pool: list[Example] = []
            room = _POOL * self._tokens_per_batch
            while room > 0:
                pool.append(self._example(encode, rng))
                room -= len(pool[-1].ids)
            for batch in batches(pool, self._tokens_per_batch, rng):
                yield collate(batch, tokenizer.pad_token_id)

    def _example(self, encode: Encoder, rng: random.Random) -> Example:
        exercise = draw(rng, "train", weights=self._weights)
        return encode(exercise, exercise.write(SteadyPen(), rng))


def collate(batch: list[Example], pad_id: int) -> dict[str, torch.Tensor]:
    """`ids`, `next_ids` and `rivals` (of the token here), all `[examples, longest]`.

    Padded on the right: a causal model then needs no mask.
    """
    longest = max(len(example.ids) for example in batch)
    ids = torch.full((len(batch), longest), pad_id)
    next_ids = torch.full((len(batch), longest), IGNORE)
    rivals = torch.full((len(batch), longest), NONE)
    for row, example in enumerate(batch):
        end = len(example.ids)
        ids[row, :end] = torch.tensor(example.ids)
        next_ids[row, example.prompt_length - 1 : end - 1] = ids[row, example.prompt_length : end]
        rivals[row, example.prompt_length : end] = torch.tensor(example.rivals)
    return {"ids": ids, "next_ids": next_ids, "rivals": rivals}


def stream(
    tokenizer_dir: str, weights: Mapping[str, float], *, tokens_per_batch: int, seed: int, workers: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The batches, prefetched by `workers` processes (0 = in this one)."""
    dataset = ExampleStream(tokenizer_dir, weights, tokens_per_batch=tokens_per_batch, seed=seed)
    return iter(DataLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=4 if workers else None))
