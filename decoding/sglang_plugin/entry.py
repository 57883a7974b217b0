"""What SGLang calls in each of its processes: makes the algorithm known, if this is the SGLang it was written for."""

from __future__ import annotations

import logging
from typing import Any

VERSION = "0.5.23"
NAMES = ("REASON", "REASON_RECURSIVE")

log = logging.getLogger(__name__)


def register() -> None:
    """Registers both algorithms. With another SGLang it does not, and a server told to use one ends with an error:
    what fits into one version might do nothing in another, or something else."""
    import sglang

    if sglang.__version__ != VERSION:
        log.warning("%s are for SGLang %s, not %s: not registered", NAMES, VERSION, sglang.__version__)
        return
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    for name, worker in zip(NAMES, (_coupled, _recursive), strict=True):
        SpeculativeAlgorithm.register(name, supports_overlap=True, spec_class=_algorithm())(worker)


# Imported only when chosen, because that changes SGLang's n-gram worker, which another algorithm may want unchanged.


def _coupled(server_args: Any) -> type:
    from decoding.sglang_plugin.worker import Worker

    del server_args
    return Worker


def _recursive(server_args: Any) -> type:
    from decoding.sglang_plugin.worker import RecursiveWorker

    del server_args
    return RecursiveWorker


def _algorithm() -> type:
    from sglang.srt.managers.overlap_utils import FutureMap
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class Algorithm(CustomSpecAlgo):  # type: ignore[misc]
        """To the scheduler an n-gram algorithm: no draft model, no KV of its own, trees of any shape."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        # This version asks every algorithm for these three and gives plugins none of them.
        def need_topk(self) -> bool:
            return False

        def carries_draft_hidden_states(self) -> bool:
            return False

        def create_future_map(self, device: Any, pool: Any, *more: Any, **named: Any) -> Any:
            return FutureMap(device, self, pool, *more, **named)

        def handle_server_args(self, server_args: Any) -> None:
            if server_args.pp_size > 1 or server_args.enable_dp_attention:
                raise ValueError(f"{self.name} knows tensor parallelism, no pipelines and no data-parallel attention")
            if server_args.device == "cpu":
                server_args.disable_overlap_schedule = True
            server_args.enable_mixed_chunk = False
            if server_args.max_running_requests is None:
                server_args.max_running_requests = 48
            if server_args.speculative_num_draft_tokens is None:
                server_args.speculative_num_draft_tokens = 12
            server_args.speculative_eagle_topk = server_args.speculative_ngram_max_bfs_breadth
            server_args.speculative_num_steps = server_args.speculative_num_draft_tokens

    return Algorithm
