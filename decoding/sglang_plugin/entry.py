"""Entry point that SGLang calls in each of its processes: registers the speculative algorithms and their flags."""

from __future__ import annotations

import argparse
import logging
import os
from typing import TYPE_CHECKING

from decoding.sglang_plugin import COUPLED_ALGORITHM, OUR_ALGORITHMS, RECURSIVE_ALGORITHM
from decoding.sglang_plugin.draft_hooks import DRAFT_HOOKS
from decoding.sglang_plugin.hooks import (
    HOOKS,
    REGISTRATION_HOOKS,
    TESTED,
    explain_changes,
    explain_version,
    require_hooks,
)
from decoding.sglang_plugin.server_args import check_server_args, set_server_args
from decoding.sglang_plugin.settings import VARIABLES, PluginSettings, add_flags

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.overlap_utils import FutureMap
    from sglang.srt.server_args import ServerArgs

log = logging.getLogger(__name__)


def register() -> None:
    """Registers both algorithms, in the supported versions of SGLang only.

    A server of another version that is started with one of the algorithms ends with an error. One of a supported
    version that has changed something that the plugin relies on ends with the names of that. Servers without them run.
    """
    import sglang

    reason = explain_version(sglang.__version__) or explain_changes(sglang.__version__, REGISTRATION_HOOKS)
    if reason is not None:
        log.warning("%s are not registered: %s", " and ".join(OUR_ALGORITHMS), reason)
        return
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    workers = {COUPLED_ALGORITHM: _coupled_worker, RECURSIVE_ALGORITHM: _recursive_worker}
    for name, worker in workers.items():
        SpeculativeAlgorithm.register(name, supports_overlap=True, spec_class=_algorithm_class())(worker)
    _extend_flags()


def _extend_flags() -> None:
    """Adds the plugin's flags to SGLang's command."""
    from sglang.srt.server_args import ServerArgs

    add_sglang_flags = ServerArgs.add_cli_args

    def add_all_flags(parser: argparse.ArgumentParser) -> None:
        add_sglang_flags(parser)
        add_flags(parser)

    ServerArgs.add_cli_args = staticmethod(add_all_flags)


# Imported only when selected: the import changes SGLang's n-gram worker, which its NGRAM algorithm needs unchanged.


def _coupled_worker(server_args: ServerArgs) -> type:
    del server_args
    draft = PluginSettings.from_environment().draft
    if draft is None:
        from decoding.sglang_plugin.worker import CoupledWorker

        return CoupledWorker
    from decoding.sglang_plugin.fused_worker import FusedEagleWorker, FusedStandaloneWorker

    return FusedStandaloneWorker if draft == "standalone" else FusedEagleWorker


def _recursive_worker(server_args: ServerArgs) -> type:
    from decoding.sglang_plugin.worker import RecursiveWorker

    del server_args
    return RecursiveWorker


def _algorithm_class() -> type:
    from sglang.srt.managers import overlap_utils
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class Algorithm(CustomSpecAlgo):  # type: ignore[misc]
        """Presents itself to the scheduler as an n-gram algorithm: no draft model, no draft KV, trees of any shape.

        With `--reason-draft` it presents itself as the algorithm of SGLang that drafts so.
        """

        def is_ngram(self) -> bool:
            return _draft() is None

        def is_standalone(self) -> bool:
            return _draft() == "standalone"

        def is_eagle(self) -> bool:
            return _draft() in ("eagle", "eagle3")

        def is_eagle3(self) -> bool:
            return _draft() == "eagle3"

        def has_draft_kv(self) -> bool:
            return _draft() is not None

        # SGLang 0.5.23 calls these three on every algorithm, but its base class for plugins lacks them.
        def need_topk(self) -> bool:
            return _draft() is not None

        def carries_draft_hidden_states(self) -> bool:
            return self.is_eagle()

        def create_future_map(
            self, device: torch.device, pool: object, *arguments: object, **named: object
        ) -> FutureMap:
            return overlap_utils.FutureMap(device, self, pool, *arguments, **named)

        def handle_server_args(self, server_args: ServerArgs) -> None:
            settings = _require_support(self.name)
            check_server_args(self.name, settings, server_args)
            set_server_args(settings, server_args)

    return Algorithm


def _draft() -> str | None:
    """Returns the value of `--reason-draft`, which the scheduler asks for several times a step."""
    return os.environ.get(VARIABLES["--reason-draft"]) or None


def _require_support(name: str) -> PluginSettings:
    """Checks the settings and SGLang before a model is loaded. Raises: ValueError, RuntimeError."""
    import sglang

    settings = PluginSettings.from_environment()
    if settings.draft is not None and name != COUPLED_ALGORITHM:
        raise ValueError(f"--reason-draft needs --speculative-algorithm {COUPLED_ALGORITHM}, got {name}")
    require_hooks(sglang.__version__, HOOKS if settings.draft is None else (*HOOKS, *DRAFT_HOOKS))
    if sglang.__version__ != TESTED:
        log.warning("the plugin was tested with SGLang %s; this is %s", TESTED, sglang.__version__)
    return settings
