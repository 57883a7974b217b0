"""Runs llama.cpp, through the functions of llama-cpp-python, as one of the engines that are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from decoding.core import Tokens
from reason.bench.baselines import BranchWorkload
from reason.bench.peers.interface import Decode

_FLOAT32 = 0  # GGML_TYPE_F32
_NO_FLASH_ATTENTION = 0  # LLAMA_FLASH_ATTN_TYPE_DISABLED
_CELL_STEP = 256


class LlamaCppPeer:
    """Implements `PeerEngine` with a GGUF file: the prompt is read once, and each branch goes on from it.

    dtype         that of the matrices in the file, for the report
    shares_cells  branches share the keys and values of the prompt, and every row looks at the cells of all branches;
                  otherwise each branch has a copy of them, and a row looks at those of its branch

    Runs that are timed have its defaults: flash attention, and keys and values in half precision. Greedy ones have
    neither, so that with weights of float32 they compute as the other engines do (with flash attention logits differ by
    about 1e-3, without by 1e-5, and a tie may fall to another token). llama.cpp decodes a limited number of sequences
    together (256); more branches are several runs one after the other.
    """

    def __init__(self, file: Path, threads: int, *, dtype: str, shares_cells: bool) -> None:
        # Any: the package calls C through ctypes and has no types
        self._llama: Any = import_module("llama_cpp")
        self._silence = self._llama.llama_log_callback(lambda level, text, data: None)  # C keeps no reference
        self._llama.llama_log_set(self._silence, None)
        self._llama.llama_backend_init()
        self._model = self._llama.llama_model_load_from_file(
            str(file).encode(), self._llama.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        self._threads, self._shares_cells = threads, shares_cells
        cells = f"the prompt is read once, branches {'share' if shares_cells else 'copy'} its keys and values"
        self.description = f"llama-cpp-python {self._llama.__version__}, {dtype} weights, its defaults, {cells}"

    @contextmanager
    def open_run(self, workload: BranchWorkload, *, greedy: bool = False) -> Iterator[Decode]:
        limit = min(workload.branches, self._llama.llama_max_parallel_sequences())
        context = self._open_context(limit, workload, exact=greedy)
        starts = range(0, workload.branches, limit)
        parts = [range(start, min(start + limit, workload.branches)) for start in starts]
        try:
            yield lambda: [tokens for seeds in parts for tokens in self._decode(context, workload, seeds, greedy)]
        finally:
            self._llama.llama_free(context)

    def _decode(self, context: Any, workload: BranchWorkload, seeds: range, greedy: bool) -> list[Tokens]:
        """Decodes one branch per seed, together."""
        llama, length, branches = self._llama, len(workload.prompt), range(len(seeds))
        memory = llama.llama_get_memory(context)
        llama.llama_memory_clear(memory, True)
        samplers = [self._make_sampler(None if greedy else seed) for seed in seeds]
        batch = llama.llama_batch_init(max(length, len(seeds)), 0, 1)
        try:
            _fill_batch(batch, workload.prompt, range(length), [0] * length, outputs=[length - 1])
            self._run_batch(context, batch)
            for branch in branches[1:]:
                llama.llama_memory_seq_cp(memory, 0, branch, -1, -1)
            rounds = [[llama.llama_sampler_sample(sampler, context, length - 1) for sampler in samplers]]
            for position in range(length, length + workload.new - 1):
                _fill_batch(batch, rounds[-1], [position] * len(seeds), branches, outputs=branches)
                self._run_batch(context, batch)
                rounds.append([llama.llama_sampler_sample(samplers[row], context, row) for row in branches])
        finally:
            llama.llama_batch_free(batch)
            for sampler in samplers:
                llama.llama_sampler_free(sampler)
        return list(zip(*rounds, strict=True))

    def _open_context(self, sequences: int, workload: BranchWorkload, *, exact: bool) -> Any:
        length, new = len(workload.prompt), workload.new
        settings = self._llama.llama_context_default_params()
        cells = length + sequences * new if self._shares_cells else sequences * _round_up(length + new)
        settings.n_ctx = _round_up(cells)
        settings.n_batch = max(length, sequences)
        settings.n_seq_max = sequences
        settings.n_threads = settings.n_threads_batch = self._threads
        settings.kv_unified = self._shares_cells
        if exact:
            settings.type_k = settings.type_v = _FLOAT32
            settings.flash_attn_type = _NO_FLASH_ATTENTION
        context = self._llama.llama_init_from_model(self._model, settings)
        if not context:
            raise RuntimeError(f"llama.cpp makes no context for {sequences} sequences and {cells} cells")
        return context

    def _make_sampler(self, seed: int | None) -> Any:
        llama = self._llama
        if seed is None:
            return llama.llama_sampler_init_greedy()
        chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_dist(seed))  # temperature 1
        return chain

    def _run_batch(self, context: Any, batch: Any) -> None:
        if code := self._llama.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode failed with {code}")


def _fill_batch(
    batch: Any, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int], *, outputs: Sequence[int]
) -> None:
    """Writes rows into a batch of C. `outputs` are the rows that get logits."""
    count = len(tokens)
    batch.n_tokens = count
    np.ctypeslib.as_array(batch.token, (count,))[:] = tokens
    np.ctypeslib.as_array(batch.pos, (count,))[:] = positions
    np.ctypeslib.as_array(batch.n_seq_id, (count,))[:] = 1
    wants_logits = np.ctypeslib.as_array(batch.logits, (count,))
    wants_logits[:] = 0
    wants_logits[list(outputs)] = 1
    for row, sequence in enumerate(sequences):
        batch.seq_id[row][0] = sequence


def _round_up(cells: int) -> int:
    """Returns the number of cells of a sequence: llama.cpp has them in steps of 256."""
    return -(-cells // _CELL_STEP) * _CELL_STEP
