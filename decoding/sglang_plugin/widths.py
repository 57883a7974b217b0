"""Lets rounds of SGLang's n-gram worker have fewer nodes than the server was started with.

SGLang sets up one number of draft tokens: views of the worker's buffers, an attention backend, CUDA graphs. A
`RoundWidth` is another set of them, built and swapped as SGLang's own adaptive EAGLE does (`SpecRuntimeState`). A graph
is replayed only for its own width, so each width has graphs of its own where the server has any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.runtime_context import get_spec

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.speculative.ngram_worker import NGRAMWorker
    from torch import Tensor

_VIEWS = (
    *("draft_tokens_batch", "tree_mask_batch", "retrieve_indexes_batch", "retrieve_next_token_batch"),
    *("retrieve_next_sibling_batch", "positions_batch"),
)
"""The worker's views of its buffers, by number of requests."""


@dataclass(frozen=True)
class RoundWidth:
    """What rounds with `nodes` nodes per tree run on."""

    nodes: int
    views: Mapping[str, list[Tensor]]
    attention: AttentionBackend
    graphs: object

    @classmethod
    def read_worker(cls, worker: NGRAMWorker) -> RoundWidth:
        """Returns what the worker has set up."""
        runner = worker.model_runner
        views = {name: getattr(worker, name) for name in _VIEWS}
        return cls(worker.draft_token_num, views, runner.attn_backend, runner.decode_cuda_graph_runner)

    @classmethod
    def build(cls, worker: NGRAMWorker, nodes: int) -> RoundWidth:
        """Builds another width for the worker, which stays as it is."""
        usual, runner = cls.read_worker(worker), worker.model_runner
        new_workspace = runner.init_new_workspace
        try:
            worker.draft_token_num = nodes
            worker._init_preallocated_tensors()
            with get_spec().override(speculative_num_draft_tokens=nodes):
                attention = runner._get_attention_backend(init_new_workspace=True)
                graphs = runner.decode_cuda_graph_runner
                if isinstance(graphs, DecodeCudaGraphRunner):
                    graphs = type(graphs)(runner, attn_backend=attention, speculative_num_draft_tokens=nodes)
            return cls(nodes, {name: getattr(worker, name) for name in _VIEWS}, attention, graphs)
        finally:
            runner.init_new_workspace = new_workspace
            usual.install(worker)

    def install(self, worker: NGRAMWorker) -> None:
        """Makes the next round of the worker one of this width. *Mutates* the worker and its model runner."""
        worker.draft_token_num = self.nodes
        for name, view in self.views.items():
            setattr(worker, name, view)
        worker.model_runner.attn_backend = self.attention
        worker.model_runner.decode_cuda_graph_runner = self.graphs


@contextmanager
def installed(worker: NGRAMWorker, width: RoundWidth, usual: RoundWidth) -> Iterator[None]:
    """Runs the `with` block with another width than the usual one."""
    if width is usual:
        yield
        return
    width.install(worker)
    try:
        with get_spec().override(speculative_num_draft_tokens=width.nodes):
            yield
    finally:
        usual.install(worker)
