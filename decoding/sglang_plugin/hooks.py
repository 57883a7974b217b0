"""Checks that SGLang still has what the plugin replaces and calls. Imports SGLang only when it checks."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType

from packaging.version import Version

OLDEST, BELOW, TESTED = "0.5.23", "0.6", "0.5.23"
"""The supported versions of SGLang, and the one that the tests run."""


@dataclass(frozen=True)
class Hook:
    """A function or class of SGLang that the plugin replaces, overrides or calls.

    name        a path below the module: `Class` or `Class.method`
    parameters  names that it must take
    uses        names that its code must use: attributes that it sets, functions that it calls
    """

    module: str
    name: str
    parameters: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()

    def explain_change(self) -> str | None:
        """Returns what is no longer there, or None."""
        place = f"{self.module}.{self.name}"
        try:
            value: object = import_module(self.module)
            for part in self.name.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError) as error:
            return f"{place} is gone ({error})"
        assert callable(value)
        taken = inspect.signature(value).parameters
        if missing := [name for name in self.parameters if name not in taken]:
            return f"{place} does not take {', '.join(missing)} any more"
        code = inspect.unwrap(value)
        used = code.__code__.co_names if isinstance(code, FunctionType) else ()
        if missing := [name for name in self.uses if name not in used]:
            return f"{place} does not use {', '.join(missing)} any more"
        return None


_ALGORITHM = "sglang.srt.speculative.spec_registry"
REGISTRATION_HOOKS = (
    Hook(
        "sglang.srt.speculative.spec_info",
        "SpeculativeAlgorithm.register",
        ("name", "supports_overlap", "spec_class"),
    ),
    Hook(_ALGORITHM, "CustomSpecAlgo", ("name",)),
    *(
        Hook(_ALGORITHM, f"CustomSpecAlgo.{name}")
        for name in ("is_ngram", "is_standalone", "is_eagle", "is_eagle3", "has_draft_kv")
    ),
    Hook(_ALGORITHM, "CustomSpecAlgo.handle_server_args", ("server_args",)),
    Hook("sglang.srt.server_args", "ServerArgs.add_cli_args", ("parser",)),
)
"""What every process that loads the plugin needs, also of a server that does not use it."""

_WORKER = "sglang.srt.speculative.ngram_worker"
HOOKS = (
    Hook(_WORKER, "NgramCorpus"),
    Hook(_WORKER, "eagle_sample", ("verify_input", "batch", "logits_output", "grammar_mask", "watermark_state")),
    Hook(
        _WORKER,
        "NGRAMWorker.__init__",
        uses=("NgramCorpus", "draft_token_num", "enable_overlap", "model_runner", "speculative_num_draft_tokens"),
    ),
    Hook(_WORKER, "NGRAMWorker.alloc_memory_pool", uses=("_init_preallocated_tensors",)),
    Hook(
        _WORKER,
        "NGRAMWorker._init_preallocated_tensors",
        uses=(
            *("draft_token_num", "draft_tokens_batch", "tree_mask_batch", "retrieve_indexes_batch"),
            *("retrieve_next_token_batch", "retrieve_next_sibling_batch", "positions_batch"),
        ),
    ),
    Hook(_WORKER, "NGRAMWorker.clear_cache_pool"),
    Hook(_WORKER, "NGRAMWorker.init_cuda_graphs"),
    Hook(_WORKER, "NGRAMWorker._prepare_draft_tokens", ("batch",), ("accept_tokens", "accept_lens")),
    Hook(_WORKER, "NGRAMWorker._prepare_for_speculative_decoding", ("batch",), ("_prepare_draft_tokens", "spec_info")),
    Hook(_WORKER, "NGRAMWorker._update_ngram_corpus", ("batch",)),
    Hook(
        _WORKER,
        "NGRAMWorker.forward_batch_generation",
        ("batch",),
        ("eagle_sample", "_prepare_for_speculative_decoding", "_update_ngram_corpus", "draft_token_num"),
    ),
    Hook(
        "sglang.srt.speculative.ngram_info",
        "NgramVerifyInput",
        ("draft_token_num", "new_seq_lens", "accept_tokens", "accept_lens"),
    ),
    Hook("sglang.srt.managers.utils", "GenerationBatchResult", ("next_draft_input", "speculative_output_stride")),
    Hook("sglang.srt.speculative.base_spec_worker", "BaseSpecWorker"),
    Hook("sglang.srt.managers.scheduler", "Scheduler.on_idle"),
    Hook("sglang.srt.managers.scheduler", "Scheduler.maybe_init_draft_worker", uses=("draft_worker",)),
    Hook("sglang.srt.managers.schedule_batch", "ScheduleBatch.grammar_needs_sync"),
    Hook("sglang.srt.managers.overlap_utils", "FutureMap"),
    Hook("sglang.srt.layers.sampler", "Sampler._sample_from_probs", ("probs", "sampling_info", "positions")),
    Hook("sglang.srt.distributed.parallel_state", "GroupCoordinator.broadcast_object", ("obj",)),
    Hook("sglang.srt.distributed.parallel_state", "get_tp_group"),
    Hook(
        "sglang.srt.sampling.penaltylib.repetition_penalty", "apply_scaling_penalties", ("logits", "scaling_penalties")
    ),
    Hook("sglang.srt.model_executor.model_runner", "ModelRunner._get_attention_backend", ("init_new_workspace",)),
    Hook(
        "sglang.srt.model_executor.runner.decode_cuda_graph_runner",
        "DecodeCudaGraphRunner",
        ("model_runner", "attn_backend", "speculative_num_draft_tokens"),
    ),
    Hook("sglang.srt.runtime_context", "get_spec"),
    Hook(
        "sglang.srt.sampling.sampling_params",
        "SamplingParams",
        ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "sampling_seed", "custom_params"),
    ),
    Hook("sglang.srt.managers.schedule_batch", "Req.__init__", ("rid", "origin_input_ids"), ("output_ids",)),
)


def explain_version(version: str) -> str | None:
    """Returns why the plugin does not run in this version of SGLang, or None.

    >>> explain_version("0.5.23")
    >>> explain_version("0.5.22")
    'the plugin needs SGLang >= 0.5.23 and < 0.6, and this is 0.5.22'
    """
    if Version(OLDEST) <= Version(version) < Version(BELOW):
        return None
    return f"the plugin needs SGLang >= {OLDEST} and < {BELOW}, and this is {version}"


def require_hooks(version: str, hooks: Sequence[Hook]) -> None:
    """Raises RuntimeError with the names of everything that this version has changed and the plugin relies on."""
    if (changes := explain_changes(version, hooks)) is not None:
        raise RuntimeError(f"{changes}. Install SGLang {TESTED}, or decode without --speculative-algorithm REASON")


def explain_changes(version: str, hooks: Sequence[Hook]) -> str | None:
    """Returns everything that this version has changed and the plugin relies on, or None."""
    if changes := [change for hook in hooks if (change := hook.explain_change()) is not None]:
        return f"SGLang {version} differs from {TESTED}, with which the plugin was tested: {'; '.join(changes)}"
    return None
