"""Which checkpoints are served, and whether they go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reason.config.compose import complaints, composed
from reason.config.errors import ConfigError, refused
from reason.engines.launcher.settings import Draft, Judge, Listening, Target
from reason.models.checkpoint import Checkpoint, find_model, read_vocabulary
from reason.models.vocabulary import check_steps
from reason.scorers.sglang_reader import HEADS, ServedPrm


@dataclass(frozen=True)
class Checkpoints:
    """`sources` by name of server: folders or hub ids. `headed` where SGLang needs our class for the reward model."""

    sources: Mapping[str, str]
    headed: bool = False


def find(sections: Mapping[str, Listening]) -> Checkpoints:
    """Reads config.json and vocabularies only. Raises: ConfigError naming the setting."""
    sources: dict[str, str] = {}
    writer: Checkpoint | None = None
    headed = False
    for name, section in sections.items():
        if isinstance(section, Target):
            writer = _target(section)
            sources[name] = writer.source
        elif isinstance(section, Draft):
            sources[name] = _draft(section, writer)
        elif isinstance(section, Judge):
            judge = _judge(section, writer)
            sources[name], headed = judge.checkpoint.source, judge.adapter.head in HEADS
    return Checkpoints(sources, headed)


def _target(section: Target) -> Checkpoint:
    path = [] if section.path is None else [f"model.path={section.path}"]
    with complaints("target.model"):
        model = composed([f"model={section.model}", *path])[0]["model"]
    return find_model(model["path"], key="target.path")


def _draft(section: Draft, writer: Checkpoint | None) -> str:
    found = find_model(section.path, key="draft.path")
    ours, writers = read_vocabulary(found.source), None if writer is None else read_vocabulary(writer.source)
    with complaints("draft"):
        check_steps(section.vocabulary, str(section.path), ours, "target.path", writers)
    return found.source


def _judge(section: Judge, writer: Checkpoint | None) -> ServedPrm:
    try:
        judge = ServedPrm(format=section.format, path=section.path, urls="http://nobody:1", group="prm")
    except ValueError as error:
        raise ConfigError(refused("prm", error, ("format", "path"))) from error
    with complaints("prm"):
        judge.check()
        if writer is not None:
            judge.check_writer(writer)
    return judge
