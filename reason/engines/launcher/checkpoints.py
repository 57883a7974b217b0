"""Finds the checkpoints to serve and checks that they fit together; reads config.json and vocabularies only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reason.config.compose import as_config_error, compose_settings
from reason.config.errors import ConfigError, rejected_setting
from reason.engines.launcher.settings import (
    GeneratorSettings,
    ListenerSettings,
    RewardModelSettings,
    SmallModelSettings,
    TargetSettings,
)
from reason.models.checkpoint import Checkpoint, find_model, read_vocabulary
from reason.models.tokenizer import require_step_vocabulary
from reason.scorers.heads import ServedHead
from reason.scorers.sglang_reader import SglangPrmScorer

_NO_SERVER = "http://localhost:1"  # a scorer needs an address; this one is never used


@dataclass(frozen=True)
class ServedCheckpoints:
    """Folders or hub ids, and their config.json, by name of server.

    draft_*         of the draft models, of the servers that have one
    needs_our_head  whether SGLang needs our class for the reward model
    """

    sources: Mapping[str, str]
    configs: Mapping[str, Mapping[str, object]]
    draft_sources: Mapping[str, str]
    draft_configs: Mapping[str, Mapping[str, object]]
    needs_our_head: bool = False


def find_checkpoints(sections: Mapping[str, ListenerSettings]) -> ServedCheckpoints:
    """Returns the checkpoints of all sections. Raises: ConfigError naming the setting."""
    checkpoints: dict[str, Checkpoint] = {}
    target: Checkpoint | None = None
    needs_our_head = False
    for name, section in sections.items():
        if isinstance(section, TargetSettings):
            target = checkpoints[name] = _find_target(section)
        elif isinstance(section, SmallModelSettings):
            checkpoints[name] = _find_small_model(section, target)
        elif isinstance(section, RewardModelSettings):
            scorer = _build_scorer(section, target)
            checkpoints[name], needs_our_head = scorer.checkpoint, isinstance(scorer.adapter.head, ServedHead)
    drafts = {
        name: find_model(section.draft_path, key=f"{name}.draft_path")
        for name, section in sections.items()
        if isinstance(section, GeneratorSettings) and section.draft_path is not None
    }
    return ServedCheckpoints(
        {name: one.source for name, one in checkpoints.items()},
        {name: one.config for name, one in checkpoints.items()},
        {name: one.source for name, one in drafts.items()},
        {name: one.config for name, one in drafts.items()},
        needs_our_head,
    )


def _find_target(section: TargetSettings) -> Checkpoint:
    path = [] if section.path is None else [f"model.path={section.path}"]
    with as_config_error("target.model"):
        model = compose_settings([f"model={section.model}", *path])[0]["model"]
    return find_model(model["path"], key="target.path")


def _find_small_model(section: SmallModelSettings, target: Checkpoint | None) -> Checkpoint:
    checkpoint = find_model(section.path, key="small.path")
    source = checkpoint.source
    vocabulary, target_vocabulary = read_vocabulary(source), None if target is None else read_vocabulary(target.source)
    with as_config_error("small"):
        require_step_vocabulary(section.vocabulary, str(section.path), vocabulary, "target.path", target_vocabulary)
    return checkpoint


def _build_scorer(section: RewardModelSettings, target: Checkpoint | None) -> SglangPrmScorer:
    try:
        scorer = SglangPrmScorer(format=section.format, path=section.path, urls=_NO_SERVER, group="prm")
    except ValueError as error:
        raise ConfigError(rejected_setting("prm", error, ("format", "path"))) from error
    with as_config_error("prm"):
        scorer.validate()
        if target is not None:
            scorer.validate_writer(target)
    return scorer
