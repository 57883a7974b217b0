"""The draft model of a checkpoint: a small model that drafts for a large one of the same vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from decoding.model.transformers_checkpoint import Device, DType
from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.validation import MAX_VALUE, require_count
from reason.models.checkpoint import find_model, load_tokenizer
from reason.models.plain_checkpoint import open_language_model
from reason.models.tokenizer import PretrainedTokenizer, require_same_vocabulary


class DraftModelSource(DraftModel):
    """Loads the checkpoint at `path`, a folder, a hub id or bundled:NAME, as a `DraftModel`.

    target_tokenizer  of the target model, whose vocabulary must be the same; None skips the check
    target_path       name of the target model in errors
    kv_mib            size of the KV cache in MiB

    Raises: ValueError for a wrong setting, a model that cannot be found or run, or another vocabulary.
    """

    needs_model: ClassVar[bool] = True

    @staticmethod
    def validate(settings: Mapping[str, object]) -> None:
        """Validates what needs no model. Raises: ValueError naming the setting."""
        for name in ("k", "kv_mib", "max_batched_tokens", "max_running_requests"):
            most = MAX_DRAFT_SIZE if name == "k" else MAX_VALUE
            require_count(name, settings.get(name, 1), at_least=1, at_most=most)

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
    ) -> None:
        counts = {"k": k, "max_batched_tokens": max_batched_tokens, "max_running_requests": max_running_requests}
        self.validate(counts | {"kv_mib": kv_mib})
        source = find_model(path, key="speculation.path").source
        vocabulary = load_tokenizer(source).get_vocab()
        if target_tokenizer is not None:
            require_same_vocabulary(path, vocabulary, target_path, target_tokenizer.get_vocab())
        super().__init__(
            open_language_model(source, device=device, dtype=dtype),
            k=k,
            kv_bytes=kv_mib << 20,
            max_batched_tokens=max_batched_tokens,
            max_running_requests=max_running_requests,
            vocab_size=max(vocabulary.values()) + 1,
        )
