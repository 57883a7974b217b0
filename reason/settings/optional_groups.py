"""Makes what a solver can do without: an embedder, an eviction policy, an allocation of samples."""

from __future__ import annotations

from collections.abc import Mapping

from decoding.kv.eviction.policy import EvictionPolicy
from decoding.validation import shorten
from reason.config.compose import Settings, as_config_error, instantiate
from reason.config.errors import ConfigError
from reason.engines.spec import EngineSpec
from reason.runs.allocation import SampleAllocation
from reason.runs.sample_rounds import require_divisible
from reason.scorers.base import LoadableEmbedder
from reason.scorers.embedders.measured_threshold import MeasuredThreshold
from search.steps import StepRule
from search.strategy import Strategy


def make_embedder(config: Settings, choices: Mapping[str, str], step_rule: StepRule | None) -> LoadableEmbedder:
    """Returns the embedder of a search that compares steps. Raises: ConfigError."""
    embedder: LoadableEmbedder = instantiate("embedder", config["embedder"])
    with as_config_error("embedder"):
        embedder.validate()
    if isinstance(embedder, MeasuredThreshold):
        embedder.warn_of_other_model(config["model"]["path"])
    if embedder.needs_hidden_states and choices.get("router", "off") != "off":
        raise ConfigError(
            "embedder=hidden_states cannot compare the steps of two models, which router="
            f"{choices['router']} has; choose embedder=words or embedder=sentence_transformers"
        )
    if embedder.needs_hidden_states and step_rule is not None and step_rule.ends_before_tokens:
        raise ConfigError(
            f"embedder=hidden_states has no state of the end of a step where step={choices.get('step', '')} takes off "
            "what was written behind it; choose embedder=words or embedder=sentence_transformers"
        )
    return embedder


def make_eviction(config: Settings, choices: Mapping[str, str], engine: EngineSpec) -> EvictionPolicy | None:
    """Returns which KV of a long text a branch keeps; None for `none`, and in a run of the last release."""
    if not config.get("eviction"):
        return None
    policy = instantiate("eviction", config["eviction"])
    if not isinstance(policy, EvictionPolicy):
        target = config["eviction"].get("_target_")
        raise ConfigError(
            f"eviction._target_ must be a subclass of {EvictionPolicy.__module__}.EvictionPolicy, got {target!r}"
        )
    try:
        engine.validate_eviction(policy)
    except ValueError as error:
        raise ConfigError(f"eviction={choices.get('eviction', type(policy).__name__)} {error}") from error
    return policy


def make_allocation(config: Settings, strategy: Strategy) -> SampleAllocation | None:
    """Returns how samples are divided among problems; None: each has those of its search."""
    settings = config.get("allocation", {"samples": None})  # a run of the last release has no such setting
    if not isinstance(settings, Mapping):
        raise ConfigError(f"allocation has settings of its own, as allocation.samples=8; got {shorten(settings)}")
    if settings["samples"] is None:
        return None
    with as_config_error():
        allocation = SampleAllocation(**settings)
        require_divisible(strategy)
    n = getattr(strategy, "n", 0)
    if n <= allocation.samples:
        raise ConfigError(
            f"search.n is the most samples of one problem, and must be above allocation.samples={allocation.samples}, "
            f"the mean of all; got {n}"
        )
    return allocation
