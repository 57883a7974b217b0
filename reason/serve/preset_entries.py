"""What `/v1/models` says of a preset: its search, what it may use, and what it needs of the server's models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TypedDict

from reason.scorers.base import StatelessScorer
from reason.scorers.judge import JudgeScorer
from reason.scorers.likelihood import LikelihoodScorer
from reason.serve.presets import Preset
from search.voting import TOURNAMENT


class ModelEntry(TypedDict):
    """One entry of `/v1/models`; the first four fields are OpenAI's.

    search         the option of conf/search
    width          solutions, branches or simulations of the search: its setting `n`
    select         how the answer is chosen; None where the search leaves no choice
    scorer         what scores its solutions or steps; None where it uses no scores
    budget         its limits; a request may set smaller ones
    needs          what it needs beside a model that writes, see `list_needs`
    settings       settings of the search that a request may change in its field `search`
    writer         the model that writes
    max_model_len  tokens that it holds, under the name that vLLM and SGLang have for it
    """

    id: str
    object: str
    created: int
    owned_by: str
    search: str
    width: int | None
    select: str | None
    scorer: str | None
    budget: dict[str, float]
    needs: list[str]
    settings: dict[str, object]
    writer: str
    max_model_len: int | None


def describe_preset(preset: Preset, *, created: int) -> ModelEntry:
    """Returns the entry of a preset; `created` is in seconds since the epoch."""
    spec, strategy = preset.spec, preset.strategy
    uses_scorer = strategy.needs_scorer or strategy.select == TOURNAMENT
    return {
        "id": preset.name,
        "object": "model",
        "created": created,
        "owned_by": "reason",
        "search": preset.search,
        "width": getattr(strategy, "n", None),
        "select": getattr(strategy, "select", None),
        "scorer": spec.names["scorer"] if uses_scorer else None,
        "budget": {name: limit for name, limit in vars(preset.budget).items() if limit is not None},
        "needs": list_needs(preset),
        "settings": _list_settings(strategy),
        "writer": spec.names["model"],
        "max_model_len": spec.checkpoint.context_window,
    }


def list_needs(preset: Preset) -> list[str]:
    """Returns what a preset needs: of `reward model`, `judge`, `log-probabilities`, `embedder` and `continuations`.

    The last is an engine that continues a text, as searches over steps do.
    """
    strategy, scorer = preset.strategy, preset.spec.scorer
    scores = strategy.needs_scorer or strategy.select == TOURNAMENT
    reads_tokens = scores and (isinstance(scorer, LikelihoodScorer) or scorer.num_top > 0)
    needs = {
        "reward model": scores and not isinstance(scorer, StatelessScorer | JudgeScorer),
        "judge": scores and isinstance(scorer, JudgeScorer),
        "log-probabilities": reads_tokens or getattr(strategy, "num_top", 0) > 0,
        "embedder": strategy.needs_embedder,
        "continuations": strategy.by_steps or getattr(strategy, "continues_text", False),
    }
    return [name for name, is_needed in needs.items() if is_needed]


def _list_settings(strategy: object) -> dict[str, object]:
    """Returns the fields of a dataclass as plain data, without the texts of templates."""
    assert is_dataclass(strategy)
    values = {field.name: getattr(strategy, field.name) for field in fields(strategy)}
    return {name: _to_plain(value) for name, value in values.items() if not isinstance(value, Mapping)}


def _to_plain(value: object) -> object:
    if is_dataclass(value):
        return _list_settings(value)
    return list(value) if isinstance(value, tuple | list | set | frozenset) else value
