"""Settings of `engine=local`: one model in this process, with its tokenizer and KV pool."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, Self, TypeVar

from decoding.kv.eviction.policy import EvictionPolicy
from decoding.model.backend import ATTENTION_CHOICES, DECODER_CHOICES, GRAPHS_CHOICES, NUMERICS_CHOICES
from decoding.model.families import explain_unsupported_config
from decoding.model.numerics import pick_invariant_path, require_invariant_model, require_invariant_settings
from decoding.validation import MAX_VALUE, is_count, require_choice, require_count, require_switch, shorten
from reason.config.errors import ConfigError
from reason.engines.base import EngineUse, EvictingEngineSettings, SpeculationFactory
from reason.engines.cost_store import identify_machine, read_costs, save_costs
from reason.models.checkpoint import Checkpoint, eos_ids
from reason.models.devices import require_device
from reason.models.loading import announce, tell
from reason.models.tokenizer import PretrainedTokenizer

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.engine import LocalEngine
    from decoding.model.device_choice import Device, DType
    from decoding.model.transformers_checkpoint import HFBackend
    from decoding.model.workspace import Workspace
    from decoding.round import Speculation
    from decoding.speculation.interfaces import RoundCost

log = logging.getLogger(__name__)

_LEAST_TOKENS = 64
"""A pool of automatic size for fewer is not tried."""
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class LocalSettings(EvictingEngineSettings):
    """The embedded engine.

    kv_mib                size of the KV pool in MiB; auto: three quarters of what is free on a GPU once the model is
                          loaded and the largest round is accounted for, an eighth of a CPU's memory, and no more than
                          all running requests can fill
    max_running_requests  branches decoded together
    max_batched_tokens    tokens fed per round
    decoder               compiled: one call runs all layers, float32 on a CPU only; eager: operation by operation;
                          auto: compiled for small models that can run so
    attention             segments: two Triton kernels whatever the batch; blocks: padded products of PyTorch;
                          auto: segments on CUDA, except in float64 and without Triton
    graphs                always: rounds of up to 512 tokens run as CUDA graphs, launched by one call; never: kernel by
                          kernel; auto: graphs on CUDA with segments
    numerics              invariant: the same bits for a token, and so the same tokens, whatever else is in its batch,
                          however its prompt is cut and with drafts or without; fast: they may differ by rounding
    keep_costs            keep the timed rounds of this machine in the user's cache folder, for the next start

    Raises: ValueError naming the setting.
    """

    device: Device = "auto"
    dtype: DType = "auto"
    kv_mib: int | Literal["auto"] = "auto"
    max_running_requests: int = 256
    max_batched_tokens: int = 1024
    decoder: str = "auto"
    attention: str = "auto"
    graphs: str = "auto"
    numerics: str = "fast"
    keep_costs: bool = True

    def require_packages(self) -> None:
        """See `EngineSettings`."""
        require_device(self.device)
        if self.decoder == "compiled":
            from decoding.compiled import explain_no_numba  # here: Numba takes half a second to import

            if (reason := explain_no_numba()) is not None:
                raise ValueError(
                    f"decoder=compiled cannot run: {reason}. Without it, set decoder=auto or decoder=eager"
                )
        if self.numerics == "invariant":
            from decoding.model.device_choice import pick_device, pick_dtype

            device = pick_device(self.device)
            pick_invariant_path(self.decoder, self.attention, device, pick_dtype(self.dtype, device))

    names_tokens = True
    tells_tokens = True

    @property
    def measures_tokens(self) -> bool:
        """See `EngineSettings`."""
        return True

    def __post_init__(self) -> None:
        for name in ("max_running_requests", "max_batched_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        if self.kv_mib != "auto" and not is_count(self.kv_mib, at_least=1, at_most=MAX_VALUE):
            raise ValueError(f"kv_mib must be auto or an int >= 1, got {shorten(self.kv_mib)}")
        require_choice("decoder", self.decoder, DECODER_CHOICES)
        require_choice("attention", self.attention, ATTENTION_CHOICES)
        require_choice("graphs", self.graphs, GRAPHS_CHOICES)
        require_choice("numerics", self.numerics, NUMERICS_CHOICES)
        if self.numerics == "invariant":
            require_invariant_settings(self.decoder, self.attention, self.dtype)
        require_switch("keep_costs", self.keep_costs)

    def adapt_to(self, use: EngineUse) -> Self:
        """See `EngineSettings`. Raises: ConfigError also for a model that its config.json says cannot run."""
        adapted, checkpoint = super().adapt_to(use), use.checkpoint
        if reason := explain_unsupported_config(checkpoint.config):
            raise ConfigError(
                f"{use.key}=local cannot run {checkpoint.source}: {reason}; servers may, with engine=sglang"
            )
        if self.numerics == "invariant":
            try:
                require_invariant_model(checkpoint.config)
            except ValueError as error:
                raise ConfigError(f"{use.key}.{error}") from error
        return adapted

    def validate_eviction(self, policy: EvictionPolicy) -> None:
        """See `EvictingEngineSettings`."""
        if self.numerics == "invariant":
            # splits of keys are at positions, which sequences with gaps do not have
            raise ValueError(
                "leaves gaps between a branch's positions, over which engine.numerics=invariant does not hold; set "
                "eviction=none or engine.numerics=fast"
            )
        if policy.needs_attention and (self.decoder == "compiled" or self.attention == "segments"):
            raise ValueError(
                "reads attention weights, which only the eager decoder over blocks has; set engine.decoder=auto or "
                "eager, and engine.attention=auto or blocks"
            )

    def open_engine(
        self,
        checkpoint: Checkpoint,
        *,
        tokenizer: PretrainedTokenizer,
        speculation: SpeculationFactory | None = None,
        eviction: EvictionPolicy | None = None,
    ) -> LocalEngine:
        """Loads the model; without `speculation` it decodes token by token.

        Raises: ValueError for a wrong setting or an unsupported model.
        """
        from decoding.round import Speculation
        from decoding.speculation.controllers.cost_curve import CalibratedCost
        from decoding.speculation.drafters.none import NoDraft

        def make_parts() -> Speculation:
            return speculation(tokenizer, checkpoint.source, backend) if speculation else Speculation()

        _warn_without_numba()
        with announce(f"loading model {Path(checkpoint.source).name}"):
            backend = self._load_model(checkpoint, eviction)
            parts = make_parts()
        parts = _compile_ahead(backend, parts, make_parts)
        if isinstance(parts.controller, CalibratedCost) and not isinstance(parts.drafter, NoDraft):
            parts.controller.calibrate_cost(self._measure_costs(backend, checkpoint), backend.row_counts)
        # what was made while loading would be collected in one of the first rounds, which say what drafts are worth
        gc.collect(0)
        return self._start_engine(backend, checkpoint, tokenizer, parts, eviction)

    def _load_model(self, checkpoint: Checkpoint, eviction: EvictionPolicy | None) -> HFBackend:
        from decoding.kv.out_of_memory import MEMORY_ERRORS, is_out_of_memory
        from reason.models.plain_checkpoint import open_language_model

        needs_attention = eviction is not None and eviction.needs_attention
        try:
            return open_language_model(
                checkpoint.source,
                device=self.device,
                dtype=self.dtype,
                decoder="eager" if needs_attention else self.decoder,
                attention="blocks" if needs_attention else self.attention,
                graphs="never" if needs_attention else self.graphs,
                numerics=self.numerics,
            )
        except MEMORY_ERRORS as error:
            if not is_out_of_memory(error):
                raise
            raise ValueError(
                f"device={self.device} has no memory for the weights of {checkpoint.source}; choose another device, "
                f"dtype=bfloat16 or a smaller model ({error})"
            ) from error

    def _start_engine(
        self,
        backend: HFBackend,
        checkpoint: Checkpoint,
        tokenizer: PretrainedTokenizer,
        parts: Speculation,
        eviction: EvictionPolicy | None,
    ) -> LocalEngine:
        from decoding.engine import LocalEngine
        from decoding.kv.out_of_memory import OutOfMemory

        kv_bytes = self._count_kv_bytes(backend, parts)
        while True:
            try:
                return LocalEngine(
                    backend,
                    decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False)),
                    eos_ids=eos_ids(checkpoint.source, tokenizer),
                    kv_bytes=kv_bytes,
                    max_running_requests=self.max_running_requests,
                    max_batched_tokens=self.max_batched_tokens,
                    speculation=parts,
                    eviction=eviction,
                    prepares_rounds=True,
                )
            except OutOfMemory as error:
                if self.kv_mib != "auto" or kv_bytes < _LEAST_TOKENS * backend.kv_bytes_per_token:
                    raise
                # another process may have taken what was free
                log.warning("half of that, then: %s", error)
            kv_bytes //= 2

    def _count_kv_bytes(self, backend: HFBackend, parts: Speculation) -> int:
        from decoding.kv.pool_memory import pick_pool_bytes
        from decoding.model.key_table import TABLE_BYTES_PER_SLOT

        if self.kv_mib != "auto":
            return self.kv_mib << 20
        slots = self.max_running_requests * backend.max_positions + 1
        workspace = 0
        if backend.device.type == "cuda":  # a CPU's memory is far more than a round takes
            workspace = self._estimate_workspace(backend, parts).total
        per_slot = backend.kv_bytes_per_token
        size = pick_pool_bytes(backend.device, at_most=slots * per_slot, workspace=workspace)
        if backend.segment_tiles is None:
            return size
        # the table of keys, a number of bytes for each slot, is beside the pool
        return size * per_slot // (per_slot + TABLE_BYTES_PER_SLOT)

    def _estimate_workspace(self, backend: HFBackend, parts: Speculation) -> Workspace:
        from decoding.gpu_sampler import runs_kernels
        from decoding.model.workspace import RoundSize
        from decoding.speculation.acceptance.coupled import Coupled
        from decoding.speculation.drafters.none import NoDraft

        # a round has a token of each running request, and a chunk of a prompt; with drafts all may have logits
        tokens = self.max_batched_tokens + self.max_running_requests
        outputs = self.max_running_requests if isinstance(parts.drafter, NoDraft) else tokens
        # its kernels read the logits as they are; other rules and samplers need distributions in float32
        float_copies = 0 if runs_kernels(backend.device) and isinstance(parts.acceptance, Coupled) else 3
        largest = RoundSize(tokens, outputs, backend.max_positions)
        workspace = backend.estimate_workspace(largest, float_copies=float_copies)
        log.info("kept for the largest round of %d tokens: %s", tokens, workspace)
        return workspace

    def _measure_costs(self, backend: HFBackend, checkpoint: Checkpoint) -> Sequence[RoundCost]:
        """Returns the cost of rounds on this machine: those of an earlier start, or else timed now and kept."""
        import torch

        from decoding.compiled import hash_sources
        from decoding.warmup_profile import profile_rounds

        description = identify_machine() | {
            "code": hash_sources(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": str(backend.device),
            "gpu": torch.cuda.get_device_name(backend.device) if backend.device.type == "cuda" else None,
            "dtype": str(backend.dtype),
            "decoder": self.decoder,
            "attention": self.attention,
            "graphs": self.graphs,
            "numerics": self.numerics,
            "model": checkpoint.config,  # its sizes, of which the weights do not matter
        }
        costs = read_costs(description) if self.keep_costs else None
        if costs is None:
            with announce("timing rounds on this machine"):
                costs = _call_in_thread(profile_rounds, backend, row_counts=backend.row_counts)
            if self.keep_costs:
                save_costs(description, costs)
        return costs


def _compile_ahead(backend: HFBackend, parts: Speculation, make_parts: Callable[[], Speculation]) -> Speculation:
    """Compiles the loops of rounds with parts like these, unless an earlier start has; returns the parts to use.

    Where a drafter has a model, the loops of drafting are left for the first request: the model would load twice.
    """
    from decoding.compile_beside import may_begin_without
    from decoding.compiled import is_compiled_ahead, note_compiled
    from decoding.compiling_process import is_compiling_drafts, wait_for_drafts
    from decoding.round import Speculation
    from decoding.speculation.controllers.until_compiled import PlainUntilCompiled
    from decoding.warmup_profile import compile_loops, name_loops, runs_a_model

    loops = name_loops(backend, parts)
    if is_compiled_ahead(loops):
        return parts
    with announce("compiling for this machine, once"):
        if is_compiling_drafts():
            # those of rounds without drafts meanwhile
            _call_in_thread(compile_loops, backend, Speculation())
            if may_begin_without(loops):
                tell("the first rounds have no drafts, as the code for them is still being compiled")
                # it has no costs, so none are measured
                waiting = PlainUntilCompiled(parts.controller, lambda: not is_compiling_drafts())
                return replace(parts, controller=waiting)
            wait_for_drafts()
        others = Speculation() if runs_a_model(parts.drafter) else make_parts()
        _call_in_thread(compile_loops, backend, others)
    note_compiled(loops)
    return parts


def _call_in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a function that runs rounds on an event loop of its own: this thread may run another one."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *args, **kwargs).result()


@cache
def _warn_without_numba() -> None:
    """Says once what is slower without Numba, where it is absent."""
    from decoding.compiled import explain_no_numba

    if (reason := explain_no_numba()) is not None:
        log.warning(
            "decoding is slower on a CPU, 2 to 4 times with a small model, which would run compiled, "
            "and there are no drafts: %s",
            reason,
        )
