"""Entry point that SGLang calls in each of its processes: registers the algorithms with the supported version."""

from __future__ import annotations

import logging
from typing import Any

VERSION = "0.5.23"
NAMES = ("REASON", "REASON_RECURSIVE")

log = logging.getLogger(__name__)


def register() -> None:
    """Registers both algorithms, with the supported version of SGLang only.

    With another version a server that is started with one of them ends with an error: the replaced names might do
    nothing there, or something else.
    """
    import sglang

    if sglang.__version__ != VERSION:
        log.warning("%s are for SGLang %s, not %s: not registered", NAMES, VERSION, sglang.__version__)
        return
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    for name, worker in zip(NAMES, (_coupled_worker, _recursive_worker), strict=True):
        SpeculativeAlgorithm.register(name, supports_overlap=True, spec_class=_algorithm_class())(worker)


# Imported only when chosen, because that changes SGLang's n-gram worker, which another algorithm may want unchanged.


def _coupled_worker(server_args: Any) -> type:
    from decoding.sglang_plugin.worker import CoupledWorker

    del server_args
    return CoupledWorker


def _recursive_worker(server_args: Any) -> type:
    from decoding.sglang_plugin.worker import RecursiveWorker

    del server_args
    return RecursiveWorker


def _algorithm_class() -> type:
    from sglang.srt.managers.overlap_utils import FutureMap
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class Algorithm(CustomSpecAlgo):  # type: ignore[misc]
        """Looks to the scheduler like an n-gram algorithm: no draft model, no KV of its own, trees of any shape."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        # This version calls these three on every algorithm, but its base class for plugins lacks them.
        def need_topk(self) -> bool:
            return False

        def carries_draft_hidden_states(self) -> bool:
            return False

        def create_future_map(self, device: Any, pool: Any, *more: Any, **named: Any) -> Any:
            return FutureMap(device, self, pool, *more, **named)

        def handle_server_args(self, server_args: Any) -> None:
            if server_args.pp_size > 1 or server_args.enable_dp_attention:
                raise ValueError(
                    f"{self.name} supports tensor parallelism, but neither pipelines nor data-parallel attention"
                )
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
