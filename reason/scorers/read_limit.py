"""Names the limit of the paths that a reward model reads, and what moves it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reason.models.checkpoint import Checkpoint
from reason.scorers.base import PrmAdapter


@dataclass(frozen=True)
class ReadLimit:
    """The longest path that a reward model reads, prompt included.

    source  what sets it, with its value: `scorer.max_tokens=512`
    remedy  what moves it
    group   the group of settings of the model; that of the run's scorer may read windows of a path

    >>> print(ReadLimit.from_setting(512).explain(prompt_tokens=100))
    the reward model reads at most 512 tokens (scorer.max_tokens=512); raise scorer.max_tokens or leave it null, or \
set scorer_reads=window and scorer_window below 412 (the prompt has 100)
    """

    max_tokens: int
    source: str
    remedy: str
    group: str = "scorer"

    @classmethod
    def from_setting(cls, max_tokens: int, group: str = "scorer") -> ReadLimit:
        """Returns the limit that `max_tokens` of a group of settings is."""
        setting = f"{group}.max_tokens"
        return cls(max_tokens, f"{setting}={max_tokens}", f"raise {setting} or leave it null", group)

    @classmethod
    def from_model(cls, max_tokens: int, source: str, group: str = "scorer") -> ReadLimit:
        """Returns a limit that no setting raises but the choice of the model."""
        return cls(max_tokens, source, f"set {group}.path to a model with a longer window", group)

    def explain(self, *, prompt_tokens: int) -> str:
        """Returns the limit, what sets it and what moves it, as a part of a warning."""
        text = f"the reward model reads at most {self.max_tokens} tokens ({self.source}); {self.remedy}"
        room = self.max_tokens - prompt_tokens
        if self.group != "scorer" or room <= 1:  # no window helps
            return text
        return f"{text}, or set scorer_reads=window and scorer_window below {room} (the prompt has {prompt_tokens})"


def find_read_limit(checkpoint: Checkpoint, adapter: PrmAdapter, max_tokens: int | None, group: str) -> ReadLimit:
    """Returns the least limit of model, format and `max_tokens`. Raises: ValueError if none of them has one."""
    config = checkpoint.config
    known_limits = [
        ReadLimit.from_model(value, f"{name} in its config.json", group)
        for name, value in (
            ("max_position_embeddings", checkpoint.context_window),
            ("sliding_window", config.get("sliding_window") if config.get("model_type") == "mistral" else None),
        )
        if isinstance(value, int)
    ]
    if adapter.context_limit is not None:
        source = f"as it was trained, says {type(adapter).__name__}"
        known_limits.append(ReadLimit.from_model(adapter.context_limit, source, group))
    if max_tokens is not None:
        known_limits.append(ReadLimit.from_setting(max_tokens, group))
    if not known_limits:
        raise ValueError(
            f"{group}.max_tokens must be set: the config.json of {checkpoint.source} names no max_position_embeddings"
        )
    return least(known_limits)


def least(limits: Iterable[ReadLimit]) -> ReadLimit:
    """Returns the limit with the fewest tokens, the first of equal ones."""
    return min(limits, key=lambda limit: limit.max_tokens)
