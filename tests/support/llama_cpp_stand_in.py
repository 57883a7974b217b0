"""The functions of llama-cpp-python that the adapter calls, over a toy model that sees every cell of its sequence.

The next token of a sequence is a checksum of its tokens with their positions, so that a token that is missing, that is
in another place, or that belongs to another branch changes all that follows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

VOCABULARY = 50


def next_token(cells: dict[int, int], seed: int | None) -> int:
    """Returns the token that follows `cells`, from position to token; a seed draws another than the likeliest."""
    checksum = sum((position + 1) * (token + 3) ** 2 for position, token in cells.items())
    return (checksum + (0 if seed is None else 7 * (seed + 1) * len(cells))) % VOCABULARY


def expected_tokens(prompt: Sequence[int], new: int, seed: int | None) -> tuple[int, ...]:
    """Returns the branch that the toy model decodes alone."""
    cells = dict(enumerate(prompt))
    for position in range(len(prompt), len(prompt) + new):
        cells[position] = next_token(cells, seed)
    return tuple(cells.values())[len(prompt) :]


@dataclass
class ToyContext:
    """Cells of each sequence, the sequence of each row with logits, and how it was set."""

    settings: Any
    cells: dict[int, dict[int, int]] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)


@dataclass
class LlamaCppStandIn:
    """Stands in for the module `llama_cpp`. `alive` are objects that C would still hold, `rows` what was decoded."""

    max_sequences: int = 256
    failing_decode: int = 0
    alive: list[object] = field(default_factory=list)
    contexts: list[ToyContext] = field(default_factory=list)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    __version__: str = "0.0-toy"

    def llama_log_callback(self, function: Callable[..., None]) -> Callable[..., None]:
        return function

    def llama_log_set(self, callback: Callable[..., None], data: None) -> None: ...

    def llama_backend_init(self) -> None: ...

    def llama_model_default_params(self) -> SimpleNamespace:
        return SimpleNamespace()

    def llama_model_load_from_file(self, file: bytes, settings: SimpleNamespace) -> bytes | None:
        return None if b"broken" in file else file

    def llama_max_parallel_sequences(self) -> int:
        return self.max_sequences

    def llama_context_default_params(self) -> SimpleNamespace:
        return SimpleNamespace()

    def llama_init_from_model(self, model: bytes, settings: SimpleNamespace) -> ToyContext:
        assert 1 <= settings.n_seq_max <= self.max_sequences
        context = ToyContext(settings)
        self.alive.append(context)
        self.contexts.append(context)
        return context

    def llama_free(self, held: object) -> None:
        self.alive.pop(next(i for i, other in enumerate(self.alive) if other is held))

    llama_batch_free = llama_sampler_free = llama_free

    def llama_get_memory(self, context: ToyContext) -> ToyContext:
        return context

    def llama_memory_clear(self, memory: ToyContext, data: bool) -> None:
        memory.cells.clear()

    def llama_memory_seq_cp(self, memory: ToyContext, source: int, target: int, first: int, last: int) -> None:
        assert (first, last) == (-1, -1)
        memory.cells[target] = dict(memory.cells[source])

    def llama_batch_init(self, tokens: int, embeddings: int, sequences: int) -> SimpleNamespace:
        def memory(kind: Any) -> Any:
            return ctypes.cast((kind * tokens)(), ctypes.POINTER(kind))

        one_each = [ctypes.cast((ctypes.c_int32 * sequences)(), ctypes.POINTER(ctypes.c_int32)) for _ in range(tokens)]
        parts = {name: memory(ctypes.c_int32) for name in ("token", "pos", "n_seq_id")}
        batch = SimpleNamespace(n_tokens=0, seq_id=one_each, logits=memory(ctypes.c_int8), **parts)
        self.alive.append(batch)
        return batch

    def llama_decode(self, context: ToyContext, batch: Any) -> int:
        assert batch.n_tokens <= context.settings.n_batch
        context.outputs.clear()
        for row in range(batch.n_tokens):
            assert batch.n_seq_id[row] == 1
            sequence = batch.seq_id[row][0]
            cells = context.cells.setdefault(sequence, {})
            assert batch.pos[row] == len(cells), "a sequence grows at its end"
            cells[batch.pos[row]] = batch.token[row]
            if batch.logits[row]:
                context.outputs[row] = sequence
        self.rows.append(tuple(batch.token[: batch.n_tokens]))
        return self.failing_decode

    def llama_sampler_init_greedy(self) -> list[int | None]:
        return self._hold([None])

    def llama_sampler_chain_default_params(self) -> None: ...

    def llama_sampler_chain_init(self, settings: None) -> list[int | None]:
        return self._hold([])

    def llama_sampler_init_dist(self, seed: int) -> int:
        return seed

    def llama_sampler_chain_add(self, chain: list[int | None], seed: int) -> None:
        chain.append(seed)

    def llama_sampler_sample(self, sampler: list[int | None], context: ToyContext, row: int) -> int:
        (seed,) = sampler
        return next_token(context.cells[context.outputs[row]], seed)

    def _hold(self, sampler: list[int | None]) -> list[int | None]:
        self.alive.append(sampler)
        return sampler
