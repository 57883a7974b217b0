"""Computes the memory that the largest round of an engine takes besides weights and KV, so that a pool leaves it free.

It is an upper estimate of what a round has in memory at the same time. A Python variable keeps a tensor until it gets
the next one, so the results of one layer are still there when those of the next are made. What it does not cover: the
copies of attention over blocks, and trees of prefixes with more than `DEPTH` nodes above a row. A round for which the
memory then is not enough runs again, smaller (see `decoding.kv.round_limit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DEPTH = 24
"""Nodes above a row that give it a partial result each although they are short, and the words of its draft."""
LIBRARY_BYTES = 512 << 20
"""For what the libraries of a GPU load and reserve after the first round: kernels, and workspaces of products."""


class RoundSize(NamedTuple):
    """The largest round: tokens, of which `outputs` need logits, and the longest context of any of them."""

    tokens: int
    outputs: int
    context: int


class DecoderSizes(NamedTuple):
    """Sizes of a decoder and its head; `itemsize` is the bytes of a number of its dtype."""

    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    itemsize: int


@dataclass(frozen=True)
class Workspace:
    """Bytes that a round takes, by what they are for."""

    layers: int
    partials: int
    logits: int
    rotary: int
    graphs: int
    libraries: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {size >> 20}" for name, size in vars(self).items()) + " MiB"


def estimate_workspace(
    sizes: DecoderSizes,
    largest: RoundSize,
    *,
    float_copies: int,
    split_keys: int | None,
    graph_rows: int,
    logit_bytes: int | None = None,
) -> Workspace:
    """Returns what the largest round takes.

    float_copies  tensors of float32 as large as the logits that the sampler and the acceptance rule make
    split_keys    keys for each of which a row has a partial result of attention; None for attention over blocks
    graph_rows    rows of the largest CUDA graph; 0 for none
    logit_bytes   of a number that the head writes; None: as of the decoder
    """

    def count_partial_bytes(round_size: RoundSize) -> int:
        return count_partials(round_size, split_keys) * sizes.heads * (sizes.head + 1) * 4 if split_keys else 0

    graphs = 0
    if graph_rows:
        # the memory of graphs is apart; their partial results are rounded up to a power of two
        graph = largest._replace(tokens=min(graph_rows, largest.tokens))
        graphs = _count_layer_bytes(sizes, graph) + 2 * count_partial_bytes(graph)
    return Workspace(
        layers=_count_layer_bytes(sizes, largest),
        partials=count_partial_bytes(largest),
        logits=largest.outputs * sizes.vocabulary * ((logit_bytes or sizes.itemsize) + 4 * float_copies),
        # a table that grows to twice the position: angles, cos and sin, the old table beside the new one
        rotary=2 * largest.context * sizes.head * 4 * 8,
        graphs=graphs,
        libraries=LIBRARY_BYTES,
    )


def _count_layer_bytes(sizes: DecoderSizes, largest: RoundSize) -> int:
    queries, keys = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
    # the residual, its norm and the sum of both layers; queries, keys and values before and after their rotation; the
    # result of attention; gate, up and their product, of this layer and the one before
    numbers = 6 * sizes.hidden + 4 * (queries + 2 * keys) + 3 * queries + 7 * sizes.mlp
    # arrays of a round: ids, positions, slots and outputs, and the rotation of each row
    return largest.tokens * (numbers * sizes.itemsize + 4 * 8 + 2 * sizes.head * 4)


def count_partials(largest: RoundSize, split_keys: int) -> int:
    """Returns the most partial results that the rows of a round have, with at most `DEPTH` nodes above each."""
    return largest.tokens * (-(-largest.context // split_keys) + DEPTH)
