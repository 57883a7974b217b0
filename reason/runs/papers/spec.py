"""Reads the setting `paper`: what a paper reports, for which settings, and on which hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from decoding.validation import require_choice, require_count, require_text, shorten

Metric = Literal["accuracy", "tokens_per_forward", "kv_ratio", "speed_ratio", "accuracy_gain"]

METRICS: Mapping[Metric, str] = {
    "accuracy": "share of the problems whose chosen answer is right",
    "tokens_per_forward": "tokens per forward pass of a branch, the bonus token included",
    "kv_ratio": "KV tokens before each decision, summed over depths: those of the other run over those of this one",
    "speed_ratio": "tokens per second, problem by problem: those of this run over those of the other one",
    "accuracy_gain": "accuracy of this run minus that of the other one",
}
"""What a published figure measures. The last three need two runs."""

BETWEEN_RUNS: tuple[Metric, ...] = ("kv_ratio", "speed_ratio", "accuracy_gain")


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """One figure of a paper.

    value    None where the paper has a curve or words alone; `promise` then says what they promise
    where    its place: abstract, table, figure
    at       settings, or options of groups, for which it is reported; a list means any of them
    over     what the other run has in their place, for the metrics `BETWEEN_RUNS`
    """

    metric: Metric
    value: float | None
    where: str
    at: Mapping[str, object] = field(default_factory=dict)
    over: Mapping[str, object] = field(default_factory=dict)
    promise: str = ""

    def __post_init__(self) -> None:
        require_choice("metric", self.metric, get_args(Metric))
        for name in ("where", "promise"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be text, got {shorten(getattr(self, name))}")
        is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        if not (is_number or (self.value is None and self.promise)):
            raise ValueError(f"value must be a number, or null beside a promise, got {shorten(self.value)}")
        for name in ("at", "over"):
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"{name} must map settings to values, got {shorten(getattr(self, name))}")
        if bool(self.over) != (self.metric in BETWEEN_RUNS):
            raise ValueError(f"over is for the metrics {', '.join(BETWEEN_RUNS)}, and they need it")

    def allowed_values(self, key: str) -> list[object]:
        """Returns the values of a setting for which the figure is reported."""
        value = self.at[key]
        return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]

    def is_for(self, settings: Mapping[str, object]) -> bool:
        """Returns whether the figure is reported for these settings, by dotted name and by group."""
        return all(settings.get(key) in self.allowed_values(key) for key in self.at)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What a paper reports, and what a run of its experiment needs.

    problems  in each whole data set, by the name of its task
    hardware  of the paper
    hours     what one run takes about, with the ground of the estimate
    free      groups or settings that may differ from the experiment's
    differs   what differs from the paper in every run of ours
    never     why no run can be a reproduction; "" where one can
    """

    title: str
    arxiv: str
    problems: Mapping[str, int]
    hardware: str
    hours: str
    figures: tuple[PublishedFigure, ...]
    free: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    never: str = ""

    @classmethod
    def from_settings(cls, node: Mapping[str, object]) -> Self:
        """Reads the setting `paper`. Raises: ValueError naming the part of it that is wrong."""
        if not isinstance(node, Mapping):
            raise ValueError(f"it must hold title, arxiv, problems, figures and so on, or be null, got {shorten(node)}")
        for name in ("title", "arxiv", "hardware", "hours"):
            require_text(name, node.get(name))
            if not isinstance(node.get(name), str) or not node[name]:
                raise ValueError(f"{name} must be text, got {shorten(node.get(name))}")
        problems = node.get("problems")
        if not isinstance(problems, Mapping) or not problems:
            raise ValueError(f"problems must map tasks to numbers of problems, got {shorten(problems)}")
        for task, count in problems.items():
            require_count(f"problems.{task}", count, at_least=1)
        known = {"title", "arxiv", "problems", "hardware", "hours", "figures", "free", "differs", "never"}
        if unknown := sorted(map(str, node.keys() - known)):
            raise ValueError(f"{unknown[0]} is not one of {', '.join(sorted(known))}")
        figures = node.get("figures")
        if not isinstance(figures, Sequence) or isinstance(figures, str) or not figures:
            raise ValueError(f"figures must list what the paper reports, got {shorten(figures)}")
        return cls(
            title=str(node["title"]),
            arxiv=str(node["arxiv"]),
            problems=dict(problems),
            hardware=str(node["hardware"]),
            hours=str(node["hours"]),
            figures=tuple(_read_figure(place, figure) for place, figure in enumerate(figures)),
            free=_read_texts("free", node.get("free")),
            differs=_read_texts("differs", node.get("differs")),
            never=str(node.get("never") or ""),
        )


def read_paper(node: Mapping[str, object] | None) -> Paper | None:
    """Returns the paper of a run; None for a run of no paper. Raises: ValueError naming what is wrong."""
    return None if node is None else Paper.from_settings(node)


def _read_figure(place: int, node: object) -> PublishedFigure:
    if not isinstance(node, Mapping):
        raise ValueError(f"figures[{place}] must hold metric, value and where, got {shorten(node)}")
    if lacking := sorted({"metric", "value", "where"} - node.keys()):
        raise ValueError(f"figures[{place}] must have {lacking[0]}")
    try:
        return PublishedFigure(**{str(key): value for key, value in node.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"figures[{place}]: {error}") from error


def _read_texts(name: str, node: object) -> tuple[str, ...]:
    if node is None:
        return ()
    if not isinstance(node, list | tuple) or not all(isinstance(text, str) for text in node):
        raise ValueError(f"{name} must be a list of texts, got {shorten(node)}")
    return tuple(node)
