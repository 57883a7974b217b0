"""Rounds of the engine's own runner over branches with long contexts, repeated on a real device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from decoding.core import SamplingParams
from decoding.model.transformers_checkpoint import HFBackend
from decoding.round import RoundRunner
from reason.bench.cards import Card
from reason.bench.puppet import BodyShape
from reason.bench.round_contexts import ContextSource, draw_drafts, open_cache, place_requests
from reason.bench.round_trace import lengthen_params, make_runner


@dataclass(frozen=True)
class SteadyRounds:
    """A runner whose branches decode on and on; each round feeds `rows` tokens.

    minimum_bytes, minimum_flops  what one round needs at least: weights and each KV slot once, products of real rows
    """

    runner: RoundRunner
    branches: int
    rows: int
    minimum_bytes: int
    minimum_flops: int

    @torch.inference_mode()
    def run_round(self) -> None:
        """Runs one round; it ends when the host has the tokens."""
        assert not list(self.runner.run_round()), "a branch ended in a measured round"

    def minimum_seconds(self, card: Card) -> float:
        """Returns the roofline of a round."""
        return card.minimum_seconds(self.minimum_bytes, self.minimum_flops)


def count_layer_weights(shape: BodyShape) -> int:
    """Returns the weights of the products of all layers: those with which a token is multiplied before the head."""
    head = shape.hidden_size // shape.num_heads
    queries, keys = shape.num_heads * head, shape.num_kv_heads * head
    layer = (
        shape.hidden_size * (queries + 2 * keys) + queries * shape.hidden_size + 3 * shape.hidden_size * shape.mlp_size
    )
    return shape.num_layers * layer


def open_rounds(
    backend: HFBackend, shape: BodyShape, source: ContextSource, nodes: int, params: SamplingParams, seed: int = 0
) -> SteadyRounds:
    """Returns rounds over drawn contexts on a backend of a shape, with `nodes` draft nodes per branch on average.

    The pool is all zeros: the time of a round does not depend on what it holds.
    """
    rng = np.random.default_rng(seed)
    contexts = source.draw_contexts(rng)
    drafts = draw_drafts(len(contexts), nodes, rng) if nodes else []
    num_nodes = sum(map(len, drafts))
    kv = open_cache(contexts, num_nodes)
    requests = place_requests(contexts, kv, lengthen_params(params, contexts))
    rows = len(requests) + num_nodes
    num_weights = count_layer_weights(shape) + shape.hidden_size * shape.vocab_size
    resident = kv.num_pinned + rows
    row_contexts = sum(map(len, contexts)) + sum(
        len(context) + depth for context, draft in zip(contexts, drafts, strict=False) for depth in draft.depths
    )
    attention = 4 * shape.num_layers * shape.hidden_size * row_contexts
    return SteadyRounds(
        make_runner(backend, kv, requests, drafts),
        len(requests),
        rows,
        num_weights * backend.dtype.itemsize + resident * backend.kv_bytes_per_token,
        2 * rows * num_weights + attention,
    )
