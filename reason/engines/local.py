"""Settings of `engine=local`: one model in this process, with its tokenizer and KV pool."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decoding.validation import require_count
from reason.engines.base import EngineSettings, SpeculationFactory
from reason.models.checkpoint import Checkpoint, eos_ids
from reason.models.tokenizer import PretrainedTokenizer

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.engine import LocalEngine
    from decoding.model.transformers_checkpoint import Device, DType


@dataclass(frozen=True, kw_only=True)
class LocalSettings(EngineSettings):
    """The embedded engine.

    kv_mib                size of the KV pool in MiB
    max_running_requests  branches decoded together
    max_batched_tokens    tokens fed per round

    Raises: ValueError naming the setting.
    """

    device: Device = "auto"
    dtype: DType = "auto"
    kv_mib: int = 1024
    max_running_requests: int = 256
    max_batched_tokens: int = 1024

    @property
    def measures_tokens(self) -> bool:
        """See `EngineSettings`."""
        return True

    def __post_init__(self) -> None:
        for name in ("kv_mib", "max_running_requests", "max_batched_tokens"):
            require_count(name, getattr(self, name), at_least=1)

    def open_engine(
        self, checkpoint: Checkpoint, *, tokenizer: PretrainedTokenizer, speculation: SpeculationFactory | None = None
    ) -> LocalEngine:
        """Loads the model; without `speculation` it decodes token by token.

        Raises: ValueError for a wrong setting or an unsupported model.
        """
        from decoding.engine import LocalEngine
        from decoding.model.transformers_checkpoint import HFBackend
        from decoding.round import Speculation
        from decoding.speculation.controllers.cost_curve import CalibratedCost
        from decoding.speculation.drafters.none import NoDraft
        from decoding.warmup_profile import profile_rounds

        backend = HFBackend.from_pretrained(checkpoint.source, device=self.device, dtype=self.dtype)
        parts = speculation(tokenizer, checkpoint.source) if speculation else Speculation()
        if isinstance(parts.controller, CalibratedCost) and not isinstance(parts.drafter, NoDraft):
            # In another thread: this one may run an event loop, and the profile runs rounds on a loop of its own.
            with ThreadPoolExecutor(1) as executor:
                parts.controller.calibrate_cost(executor.submit(profile_rounds, backend).result())
        return LocalEngine(
            backend,
            decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False)),
            eos_ids=eos_ids(checkpoint.source, tokenizer),
            kv_bytes=self.kv_mib << 20,
            max_running_requests=self.max_running_requests,
            max_batched_tokens=self.max_batched_tokens,
            speculation=parts,
        )
