"""Runs a compiled decoder and its head from compiled loops: several forward passes in one call from Python.

Shapes: T packed tokens, W tokens whose output is needed.
"""

from __future__ import annotations

from decoding.compiled import compiled_in_place
from decoding.model.backend import Records
from decoding.model.compiled_attention import Numbers
from decoding.model.compiled_layers import run_layers, size_rows
from decoding.model.panel_products import ZERO, Ints, multiply
from decoding.model.panels import Floats, Panels


@compiled_in_place
def compute_logits(
    shapes: Records, layers: Records, matrices: Panels, vectors: Floats, embedding: Floats, cos_sin: Floats,
    work: Floats, capacity: int, packed: Panels | None, slots: Ints, zeros: Floats,
    rounded: Panels, head: Panels, head_bias: Floats, num_outputs: int, num_pieces: int, head_rounded: Panels,
    kv: Numbers, tokens_T: Ints, positions_T: Ints, slots_T: Ints, output_indices_W: Ints, every_T: Ints,
    key_slots: Ints, extra_slots: Ints, keys_T: Records, hidden: Floats, logits: Floats,
) -> None:  # fmt: skip
    """Computes the logits of these tokens in one thread: rows of `len(head_bias)` numbers, `num_outputs` of them real.

    *Mutates* the pool `kv` at `slots_T`, `work`, `hidden` and `logits`, which has room for whole tiles of rows.

    The arguments are those of `run_layers`, and of `multiply` for the head; `work`, `packed` and `rounded` may be
    larger.
    """
    num_tokens, num_rows, depth = len(tokens_T), len(output_indices_W), shapes[0].hidden_size
    _, of_thread, of_group = size_rows(shapes, 1, 1, num_tokens, capacity)
    run_layers(
        # one thread reads no barrier
        ZERO, 1, every_T, every_T[:0], every_T[:0], 1, shapes, layers, matrices, vectors, embedding, cos_sin,
        tokens_T, positions_T, slots_T, output_indices_W, every_T, key_slots, extra_slots, keys_T, kv,
        work, of_thread, of_group, capacity, packed, slots, zeros, rounded, hidden,
    )  # fmt: skip
    columns = len(head_bias)
    multiply(
        hidden, ZERO, depth, num_rows, num_pieces, head, ZERO, depth, columns, head_bias, ZERO, ZERO,
        logits, ZERO, columns, head_rounded,
    )  # fmt: skip
