"""Generates an endless stream of padded training batches in worker processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from reason.tasks.synthetic.draw import draw_exercise
from reason.tasks.synthetic.exercise import ExactWriter
from reason.training.examples import EMPHASIS, IGNORE, NONE, ExampleEncoder, TrainingExample, batch_examples
from search.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ExampleSource = Callable[[random.Random], TrainingExample]
"""Draws an example."""
OpenSource = Callable[["PreTrainedTokenizerFast"], ExampleSource]
"""Makes a source for a tokenizer; it is sent to worker processes, what it makes is not."""

_POOL = 8  # batches whose examples are sorted by length together


class ExampleStream(IterableDataset[dict[str, torch.Tensor]]):
    """Batches of `tokens_per_batch` padded tokens; every worker and every `seed` draws its own problems."""

    def __init__(self, tokenizer_dir: str, open_source: OpenSource, *, tokens_per_batch: int, seed: int) -> None:
        self._tokenizer_dir = tokenizer_dir
        self._open_source = open_source
        self._tokens_per_batch = tokens_per_batch
        self._seed = seed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        from transformers import AutoTokenizer

        info = get_worker_info()
        rng = random.Random(derive_seed(self._seed, info.id if info else 0))
        tokenizer = AutoTokenizer.from_pretrained(self._tokenizer_dir)
        draw_example = self._open_source(tokenizer)
        while True:
            pool: list[TrainingExample] = []
            room = _POOL * self._tokens_per_batch
            while room > 0:
                pool.append(draw_example(rng))
                room -= len(pool[-1].ids)
            for batch in batch_examples(pool, self._tokens_per_batch, rng):
                yield collate_examples(batch, tokenizer.pad_token_id)


class SolutionSource:
    """Opens a source of problems with solutions, drawn by the weights of their families."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    def __call__(self, tokenizer: PreTrainedTokenizerFast) -> ExampleSource:
        encode = ExampleEncoder(tokenizer)

        def draw_example(rng: random.Random) -> TrainingExample:
            exercise = draw_exercise(rng, "train", weights=self._weights)
            return encode(exercise, exercise.write_solution(ExactWriter(), rng))

        return draw_example


def collate_examples(batch: list[TrainingExample], pad_id: int) -> dict[str, torch.Tensor]:
    """Returns `ids`, `next_ids`, their `weights` and `rivals` (of the token at the same place), `[examples, longest]`.

    Padded on the right, so that a causal model needs no mask.
    """
    longest = max(len(example.ids) for example in batch)
    ids = torch.full((len(batch), longest), pad_id)
    next_ids = torch.full((len(batch), longest), IGNORE)
    weights = torch.ones(len(batch), longest)
    rivals = torch.full((len(batch), longest), NONE)
    for row, example in enumerate(batch):
        end = len(example.ids)
        ids[row, :end] = torch.tensor(example.ids)
        next_ids[row, example.prompt_length - 1 : end - 1] = ids[row, example.prompt_length : end]
        for index in example.untaught:
            next_ids[row, index - 1] = IGNORE
        for index in example.emphasis:
            weights[row, index - 1] = EMPHASIS
        rivals[row, example.prompt_length : end] = torch.tensor(example.rivals)
    return {"ids": ids, "next_ids": next_ids, "weights": weights, "rivals": rivals}


def batch_stream(
    tokenizer_dir: str,
    open_source: OpenSource,
    *,
    tokens_per_batch: int,
    seed: int,
    workers: int,
) -> Iterator[dict[str, torch.Tensor]]:
    """Returns the batches, prefetched by `workers` processes (0: in this one)."""
    dataset = ExampleStream(tokenizer_dir, open_source, tokens_per_batch=tokens_per_batch, seed=seed)
    return iter(DataLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=4 if workers else None))
