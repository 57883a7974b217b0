"""The draft model of a checkpoint: a small model that drafts for a large one of the same vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from decoding.model.decoder_choice import explain_uncompiled_dtype
from decoding.model.device_choice import Device, DType, pick_device
from decoding.model.transformers_checkpoint import HFBackend
from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.draft_model import DraftModel, ModelUpdater, RefusalLimit
from decoding.validation import MAX_VALUE, require_count, require_positive, require_share
from reason.engines.acceptance_head import find_acceptance_head, load_acceptance_head
from reason.engines.draft_vocabulary import read_draft_vocabulary
from reason.models.checkpoint import find_model, load_tokenizer
from reason.models.loading import hidden_progress_bars
from reason.models.plain_checkpoint import open_language_model
from reason.models.tokenizer import PretrainedTokenizer, require_same_vocabulary


class DraftModelSource(DraftModel):
    """Loads the checkpoint at `path`, a folder, a hub id or bundled:NAME, as a `DraftModel`.

    target_tokenizer  of the target model, whose vocabulary must be the same; None skips the check
    target_path       name of the target model in errors
    kv_mib            size of the KV cache in MiB
    dtype             of weights and products; `auto` is bfloat16 on a GPU, and on a CPU where it runs compiled
    vocabulary        folder with the ids that may be drafted (VocabTrim); None: all
    stop_head         acceptance head that ends drafts (SpecDec++); None: none
    stop_threshold    it ends them where P(a refusal on the path) is above this
    learn_every       refusals per step of learning (Online Speculative Decoding); None: the model does not learn
    learning_rate     of these steps

    Raises: ValueError for a wrong setting, a model that cannot be found or run, or another vocabulary.
    """

    needs_model: ClassVar[bool] = True

    @staticmethod
    def validate(settings: Mapping[str, object]) -> None:
        """Validates what needs no model. Raises: ValueError naming the setting."""
        for name in ("k", "kv_mib", "max_batched_tokens", "max_running_requests"):
            most = MAX_DRAFT_SIZE if name == "k" else MAX_VALUE
            require_count(name, settings.get(name, 1), at_least=1, at_most=most)
        if settings.get("vocabulary") is not None:
            read_draft_vocabulary(settings["vocabulary"])
        if settings.get("stop_head") is not None:
            find_acceptance_head(settings["stop_head"])
        require_share("stop_threshold", settings.get("stop_threshold", 1.0))
        require_count("learn_every", settings.get("learn_every"), at_least=1, or_null=True)
        require_positive("learning_rate", settings.get("learning_rate", 1.0), at_most=1.0)

    def __init__(
        self,
        path: str,
        *,
        target_tokenizer: PretrainedTokenizer | None = None,
        target_path: str = "the target model",
        device: Device = "auto",
        dtype: DType = "auto",
        kv_mib: int = 256,
        max_batched_tokens: int = 1024,
        max_running_requests: int = 256,
        k: int = 10,
        vocabulary: str | None = None,
        stop_head: str | None = None,
        stop_threshold: float = 0.3,
        learn_every: int | None = None,
        learning_rate: float = 1e-4,
    ) -> None:
        counts = {"k": k, "max_batched_tokens": max_batched_tokens, "max_running_requests": max_running_requests}
        parts = {"vocabulary": vocabulary, "stop_head": stop_head, "stop_threshold": stop_threshold}
        self.validate(counts | parts | {"kv_mib": kv_mib, "learn_every": learn_every, "learning_rate": learning_rate})
        source = find_model(path, key="speculation.path").source
        ids_of = load_tokenizer(source).get_vocab()
        if target_tokenizer is not None:
            require_same_vocabulary(path, ids_of, target_path, target_tokenizer.get_vocab())
        vocab_size = max(ids_of.values()) + 1
        head_ids = None if vocabulary is None else read_draft_vocabulary(vocabulary)
        if head_ids is not None and max(head_ids) >= vocab_size:
            raise ValueError(f"vocabulary={vocabulary} has id {max(head_ids)}; {path} has ids below {vocab_size}")
        backend = _open_backend(source, device, dtype, head_ids, learns=learn_every is not None)
        stop_rule = None
        if stop_head is not None:
            head = load_acceptance_head(stop_head, backend.hidden_size).to_device(backend.device)
            stop_rule = RefusalLimit(head, stop_threshold)
        updater: ModelUpdater | None = None
        if learn_every is not None:
            updater = _open_updater(source, backend, head_ids, learn_every, learning_rate)
        super().__init__(
            backend,
            k=k,
            kv_bytes=kv_mib << 20,
            max_batched_tokens=max_batched_tokens,
            max_running_requests=max_running_requests,
            vocab_size=vocab_size,
            head_ids=None if head_ids is None else np.array(head_ids, dtype=np.int64),
            stop_rule=stop_rule,
            updater=updater,
        )


def _open_backend(
    source: str, device: Device, dtype: DType, head_ids: Sequence[int] | None, *, learns: bool
) -> HFBackend:
    """Opens the model; `auto` is bfloat16 on a CPU too, where it runs compiled: a pass of 16 rows takes 30 % less.

    The target checks drafts, so they need no exact numbers. A model that learns needs them: rounded weights lose steps.
    """
    open_in = partial(open_language_model, source, device=device, head_ids=head_ids)
    may_round = dtype == "auto" and not learns and pick_device(device).type == "cpu"
    if may_round and explain_uncompiled_dtype(torch.bfloat16) is None:
        backend = open_in(dtype="bfloat16")
        if backend.decoder_kind == "compiled":
            return backend
    return open_in(dtype=dtype)


def _open_updater(
    source: str, backend: HFBackend, head_ids: Sequence[int] | None, every: int, learning_rate: float
) -> ModelUpdater:
    """Returns what trains a second copy of the model, in float32, and drafts with a backend like this one."""
    import transformers

    from decoding.speculation.drafters.online_distillation import OnlineDistillation

    with hidden_progress_bars():
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to(backend.device).eval()
    dtype = str(backend.dtype).removeprefix("torch.")
    open_backend = partial(HFBackend, device=str(backend.device), dtype=dtype, head_ids=head_ids)
    return OnlineDistillation(model, open_backend, every=every, learning_rate=learning_rate)
