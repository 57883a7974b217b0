"""What a reward model's checkpoint must have beyond any other's: an architecture its adapter reads, a known limit."""

from __future__ import annotations

from reason.models.checkpoint import Checkpoint, find_model
from reason.scorers.base import Adapter


def find_reward_model(path: str, adapter: Adapter, group: str) -> Checkpoint:
    """The checkpoint called `path`, see `find_model`; of it only config.json is read. `group` is what errors name.

    Raises: ValueError if it is not found, or naming the valid architectures if the adapter cannot read its own.
    """
    checkpoint = find_model(path, key=f"{group}.path")
    found = (checkpoint.config.get("architectures") or ["model without a named architecture"])[0]
    if found not in adapter.architectures:
        raise ValueError(
            f"{group}.path={path} is a {found}, but {type(adapter).__name__} reads "
            f"{', '.join(adapter.architectures)}; choose another {group} or another {group}.path"
        )
    return checkpoint


def token_limit(checkpoint: Checkpoint, adapter: Adapter, at_most: int | None, group: str) -> int:
    """How many tokens may be read at once: the least of what the model, the format and the caller allow.

    Raises: ValueError if none of them says.
    """
    config = checkpoint.config
    sliding = config.get("sliding_window") if config.get("model_type") == "mistral" else None
    known = [limit for limit in (checkpoint.window, sliding, adapter.context_limit, at_most) if limit is not None]
    if not known:
        raise ValueError(
            f"{group}.max_tokens must be set: the config.json of {checkpoint.source} names no max_position_embeddings"
        )
    return min(known)
