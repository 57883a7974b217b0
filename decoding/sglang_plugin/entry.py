"""Entry point that SGLang calls in each of its processes: registers the speculative algorithms."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from decoding.sglang_plugin import COUPLED_ALGORITHM, OUR_ALGORITHMS, RECURSIVE_ALGORITHM

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.overlap_utils import FutureMap
    from sglang.srt.server_args import ServerArgs

VERSION = "0.5.23"

log = logging.getLogger(__name__)


def register() -> None:
    """Registers both algorithms, with the supported version of SGLang only.

    In another version the replaced names might not exist or have another meaning; a server of that version that is
    started with one of the algorithms ends with an error.
    """
    import sglang

    if sglang.__version__ != VERSION:
        log.warning("%s are for SGLang %s, not %s: not registered", OUR_ALGORITHMS, VERSION, sglang.__version__)
        return
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    workers = {COUPLED_ALGORITHM: _coupled_worker, RECURSIVE_ALGORITHM: _recursive_worker}
    for name, worker in workers.items():
        SpeculativeAlgorithm.register(name, supports_overlap=True, spec_class=_algorithm_class())(worker)


# Imported only when selected: the import changes SGLang's n-gram worker, which its NGRAM algorithm needs unchanged.


def _coupled_worker(server_args: ServerArgs) -> type:
    from decoding.sglang_plugin.worker import CoupledWorker

    del server_args
    return CoupledWorker


def _recursive_worker(server_args: ServerArgs) -> type:
    from decoding.sglang_plugin.worker import RecursiveWorker

    del server_args
    return RecursiveWorker


def _algorithm_class() -> type:
    from sglang.srt.managers import overlap_utils
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class Algorithm(CustomSpecAlgo):  # type: ignore[misc]
        """Presents itself to the scheduler as an n-gram algorithm: no draft model, no draft KV, trees of any shape."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        # SGLang 0.5.23 calls these three on every algorithm, but its base class for plugins lacks them.
        def need_topk(self) -> bool:
            return False

        def carries_draft_hidden_states(self) -> bool:
            return False

        def create_future_map(
            self, device: torch.device, pool: object, *arguments: object, **named: object
        ) -> FutureMap:
            return overlap_utils.FutureMap(device, self, pool, *arguments, **named)

        def handle_server_args(self, server_args: ServerArgs) -> None:
            if server_args.pp_size > 1 or server_args.enable_dp_attention:
                raise ValueError(
                    f"{self.name} supports tensor parallelism, but neither pipelines nor data-parallel attention"
                )
            # On a CPU there is no stream to overlap with.
            if server_args.device == "cpu":
                server_args.disable_overlap_schedule = True
            server_args.enable_mixed_chunk = False  # a round is either prompts or trees
            if server_args.max_running_requests is None:
                server_args.max_running_requests = 48
            if server_args.speculative_num_draft_tokens is None:
                server_args.speculative_num_draft_tokens = 12
            server_args.speculative_eagle_topk = server_args.speculative_ngram_max_bfs_breadth
            server_args.speculative_num_steps = server_args.speculative_num_draft_tokens

    return Algorithm
