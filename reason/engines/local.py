"""Settings of `engine=local`: one model in this process, with its tokenizer and KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from decoding.model.backend import ATTENTION_CHOICES, DECODER_CHOICES, GRAPHS_CHOICES
from decoding.model.families import explain_unsupported_config
from decoding.validation import MAX_VALUE, is_count, require_choice, require_count, require_switch, shorten
from reason.config.errors import ConfigError
from reason.engines.base import EngineSettings, EngineUse, SpeculationFactory
from reason.engines.cost_store import identify_machine, read_costs, save_costs
from reason.models.checkpoint import Checkpoint, eos_ids
from reason.models.devices import require_device
from reason.models.loading import announce
from reason.models.tokenizer import PretrainedTokenizer

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.engine import LocalEngine
    from decoding.model.transformers_checkpoint import Device, DType, HFBackend
    from decoding.speculation.interfaces import RoundCost


@dataclass(frozen=True, kw_only=True)
class LocalSettings(EngineSettings):
    """The embedded engine.

    kv_mib                size of the KV pool in MiB; auto: three quarters of a GPU's free memory once the model is
                          loaded, an eighth of a CPU's memory, and no more than all running requests can fill
    max_running_requests  branches decoded together
    max_batched_tokens    tokens fed per round
    decoder               compiled: one call runs all layers, float32 on a CPU only; eager: operation by operation;
                          auto: compiled for small models that can run so
    attention             segments: two Triton kernels whatever the batch; blocks: padded products of PyTorch;
                          auto: segments on CUDA, except in float64 and without Triton
    graphs                always: rounds of up to 512 tokens run as CUDA graphs, launched by one call; never: kernel by
                          kernel; auto: graphs on CUDA with segments
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
    keep_costs: bool = True

    def require_packages(self) -> None:
        """See `EngineSettings`."""
        require_device(self.device)

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
        require_switch("keep_costs", self.keep_costs)

    def adapt_to(self, use: EngineUse) -> Self:
        """See `EngineSettings`. Raises: ConfigError also for a model that its config.json says cannot run."""
        adapted, checkpoint = super().adapt_to(use), use.checkpoint
        if reason := explain_unsupported_config(checkpoint.config):
            raise ConfigError(
                f"{use.key}=local cannot run {checkpoint.source}: {reason}; servers may, with engine=sglang"
            )
        return adapted

    def open_engine(
        self, checkpoint: Checkpoint, *, tokenizer: PretrainedTokenizer, speculation: SpeculationFactory | None = None
    ) -> LocalEngine:
        """Loads the model; without `speculation` it decodes token by token.

        Raises: ValueError for a wrong setting or an unsupported model.
        """
        from decoding.compiled import is_cache_filled
        from decoding.engine import LocalEngine
        from decoding.round import Speculation
        from decoding.speculation.controllers.cost_curve import CalibratedCost
        from decoding.speculation.drafters.none import NoDraft
        from reason.models.plain_checkpoint import open_language_model

        first = "" if is_cache_filled() else " and compiling for this machine, once"
        with announce(f"loading model {Path(checkpoint.source).name}{first}"):
            backend = open_language_model(
                checkpoint.source,
                device=self.device,
                dtype=self.dtype,
                decoder=self.decoder,
                attention=self.attention,
                graphs=self.graphs,
            )
            parts = speculation(tokenizer, checkpoint.source) if speculation else Speculation()
        if isinstance(parts.controller, CalibratedCost) and not isinstance(parts.drafter, NoDraft):
            parts.controller.calibrate_cost(self._measure_costs(backend, checkpoint))
        return LocalEngine(
            backend,
            decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False)),
            eos_ids=eos_ids(checkpoint.source, tokenizer),
            kv_bytes=self._count_kv_bytes(backend),
            max_running_requests=self.max_running_requests,
            max_batched_tokens=self.max_batched_tokens,
            speculation=parts,
        )

    def _count_kv_bytes(self, backend: HFBackend) -> int:
        from decoding.kv.pool_memory import pick_pool_bytes

        if self.kv_mib != "auto":
            return self.kv_mib << 20
        slots = self.max_running_requests * backend.max_positions + 1
        return pick_pool_bytes(backend.device, at_most=slots * backend.kv_bytes_per_token)

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
            "model": checkpoint.config,  # its sizes, of which the weights do not matter
        }
        costs = read_costs(description) if self.keep_costs else None
        if costs is None:
            # In another thread: this one may run an event loop, and the profile runs rounds on a loop of its own.
            with announce("timing rounds on this machine"), ThreadPoolExecutor(1) as executor:
                costs = executor.submit(profile_rounds, backend).result()
            if self.keep_costs:
                save_costs(description, costs)
        return costs
