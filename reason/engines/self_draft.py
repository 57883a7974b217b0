"""A model that drafts for itself with a part of its layers (SWIFT, arXiv 2410.06916)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from decoding.model.backend import Backend
from decoding.speculation.draft import MAX_DRAFT_SIZE
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.layer_search import LayeredBackend, LayerSearch, check_search
from decoding.validation import MAX_VALUE, require_count
from reason.models.tokenizer import PretrainedTokenizer


class SelfDraftModelSource(DraftModel):
    """Drafts with the target's own weights, some layers left out; the search for these layers is `LayerSearch`.

    target_backend  the target model, as `engine=local` has loaded it
    kv_mib          size of the KV cache of the remaining layers in MiB

    Raises: ValueError for a wrong setting, or a model that cannot run a part of its layers.
    """

    is_trained = False  # it searches for its layers
    needs_model: ClassVar[bool] = True
    needs_target: ClassVar[bool] = True

    @staticmethod
    def validate(settings: Mapping[str, object]) -> None:
        """Validates what needs no model. Raises: ValueError naming the setting."""
        for name in ("k", "kv_mib", "max_batched_tokens", "max_running_requests"):
            most = MAX_DRAFT_SIZE if name == "k" else MAX_VALUE
            require_count(name, settings.get(name, 1), at_least=1, at_most=most)
        search = {"skip": 0.45, "trials": 50, "every": 8, "enough": 0.95}
        check_search(**{name: settings.get(name, value) for name, value in search.items()})  # type: ignore[arg-type]

    def __init__(
        self,
        *,
        target_backend: Backend | None,
        target_tokenizer: PretrainedTokenizer | None = None,
        target_path: str = "the target model",
        skip: float = 0.45,
        trials: int = 50,
        every: int = 8,
        enough: float = 0.95,
        kv_mib: int = 256,
        max_batched_tokens: int = 1024,
        max_running_requests: int = 256,
        k: int = 10,
    ) -> None:
        counts = {"k": k, "max_batched_tokens": max_batched_tokens, "max_running_requests": max_running_requests}
        self.validate(counts | {"kv_mib": kv_mib})
        if not isinstance(target_backend, LayeredBackend):
            raise ValueError(
                f"speculation=swift needs engine=local, which can run a part of the layers of {target_path}"
            )
        self.search = LayerSearch(target_backend, skip=skip, trials=trials, every=every, enough=enough)
        vocabulary = None if target_tokenizer is None else target_tokenizer.get_vocab()
        super().__init__(
            self.search.view_model(),
            k=k,
            kv_bytes=kv_mib << 20,
            max_batched_tokens=max_batched_tokens,
            max_running_requests=max_running_requests,
            vocab_size=None if vocabulary is None else max(vocabulary.values()) + 1,
            updater=self.search,
        )
