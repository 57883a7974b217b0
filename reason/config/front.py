"""Chooses the search that measured best for a budget, from a table of measured searches: `search=auto`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from decoding.validation import is_number, require_count, shorten
from reason.config.errors import ConfigError

AUTO = "auto"
"""The option of `search` that stands for the choice; what it chose is saved under this name in the settings."""

HEAD = "# Measured searches, from which search=auto chooses; as reason bench evaluate --write-front writes them."

DEFAULT_N = 16
SAME_COST = 1.1
"""A search counts as costing n solutions up to so many times the tokens of n: one over steps writes a little more."""


@dataclass(frozen=True, kw_only=True)
class FrontEntry:
    """One search at one width, measured on a data set; numbers are means per problem.

    search     option of `search`
    settings   others that it was measured with
    width      its `search.n`
    samples    its tokens, in solutions of the mean length of that data set
    low, high  95 % interval of the accuracy
    kept_kv    KV tokens that the next step needs; None where the report has no such figure
    thinking   whether the model writes thoughts
    scorer     option of `scorer`; None where the search needs no scores
    source     the report, or the command
    """

    search: str
    settings: tuple[str, ...]
    width: int
    samples: float
    tokens: float
    seconds: float
    kept_kv: float | None
    accuracy: float
    low: float
    high: float
    problems: int
    task: str
    model: str
    thinking: bool
    scorer: str | None
    source: str

    @property
    def overrides(self) -> list[str]:
        """The settings that make a run take this search."""
        return [f"search={self.search}", f"search.n={self.width}", *self.settings]

    @property
    def origin(self) -> tuple[str, str | None, str]:
        """What it was measured on."""
        return self.model, self.scorer, self.task

    @property
    def label(self) -> str:
        """The search with its settings and its width."""
        return " ".join([self.search, *self.settings, f"search.n={self.width}"])


def read_front(path: Path | None) -> list[FrontEntry]:
    """Reads a table of measured searches; None: the one of this package. Raises: ConfigError naming the file."""
    source = files("reason.config").joinpath("front.yaml") if path is None else path
    try:
        data = yaml.safe_load(source.read_text(encoding="utf-8"))
        if not isinstance(data, Mapping) or not isinstance(data.get("searches"), list):
            raise ValueError("it has no list `searches`")
        return [_read_search(row) for row in data["searches"]]
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = "`reason bench evaluate --write-front FILE` writes one"
        raise ConfigError(f"search.front: {source} is no table of measured searches ({first}); {hint}") from error


def write_front(path: Path, rows: Iterable[FrontEntry]) -> None:
    """Writes measured searches into a table, a line each: in place of those of the same model, scorer and task.

    The other rows stay. *Mutates* the file, at once. Raises: ConfigError if the file is no such table.
    """
    new = list(rows)
    measured = {row.origin for row in new}
    others = [row for row in read_front(path) if row.origin not in measured] if path.exists() else []
    lines = [json.dumps(asdict(row) | {"settings": shlex.join(row.settings)}) for row in (*others, *new)]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text("".join([f"{HEAD}\nsearches:\n", *(f"- {line}\n" for line in lines)]), encoding="utf-8")
    unfinished.replace(path)


@dataclass(frozen=True)
class AutoSearch:
    """What `search=auto` stands for: what a run may cost per problem, and what it is. A measured search must fit it.

    n       solutions; None: no limit
    tokens  generated tokens; None: no limit
    scorer  option of `scorer`
    given   settings that the user gave, by key: a search with another value does not fit
    """

    n: int | None
    tokens: int | None
    thinking: bool
    scorer: str
    model: str
    task: str | None
    given: Mapping[str, str]

    def affords(self, row: FrontEntry) -> bool:
        """Returns whether a search costs no more than this."""
        is_short = self.n is None or row.samples <= SAME_COST * self.n
        return is_short and (self.tokens is None or row.tokens <= self.tokens)

    def __str__(self) -> str:
        limits = [f"{self.n} solutions" if self.n else "", f"{self.tokens:,} tokens" if self.tokens else ""]
        return " and ".join(filter(None, limits))


def choose_search(rows: Sequence[FrontEntry], budget: AutoSearch) -> tuple[FrontEntry, str]:
    """Returns the most accurate search that fits, the cheaper of equals, and a sentence that says why.

    Where some were measured with the scorer, the model or the data set of the run, the others do not count.

    Raises: ConfigError saying what fits not.
    """
    kind = "a model that thinks" if budget.thinking else "a model that does not think"
    left = _narrow(rows, lambda row: row.thinking == budget.thinking, f"none was measured with {kind}")
    left = _narrow(
        left,
        lambda row: budget.scorer != "none" or row.scorer is None or "scorer" in _keys(row.settings),
        f"scorer=none gives no scores, and all that were measured with {kind} need them",
    )
    left = _narrow(
        left, lambda row: not _conflicts(row, budget.given), "each has a setting that you gave with another value"
    )
    # a vote measured alone is for runs without scores: its accuracy cannot be compared with those on other data
    if budget.scorer != "none" and any(row.scorer for row in left):
        with_scores = {row.task for row in left if row.scorer}
        left = [row for row in left if row.task in with_scores]
    if any(row.scorer == budget.scorer for row in left):
        left = [row for row in left if row.scorer in (None, budget.scorer)]
    left = [row for row in left if row.model == budget.model] or left
    left = [row for row in left if row.task == budget.task] or left
    least = min(left, key=lambda row: row.tokens)
    cheapest = f"the cheapest of {len(left)} that would fit, {least.label}, needs {least.tokens:,.0f} tokens"
    affordable = _narrow(left, budget.affords, f"{cheapest}, {least.samples:.1f} solutions, and the budget is {budget}")
    row = max(affordable, key=lambda row: (row.accuracy, -row.tokens))
    return row, _explain(row, len(affordable), budget)


def choose_overrides(
    config: Mapping[str, Any], choices: Mapping[str, str], overrides: Sequence[str]
) -> tuple[list[str], dict[str, object]]:
    """Returns the overrides with the chosen search in place of `search=auto`, and what to save of the choice.

    Raises: ConfigError.
    """
    search = config["search"]
    try:
        require_count("search.n", search["n"], at_least=1, or_null=True)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    front = search["front"]
    if front is not None and not isinstance(front, str):
        raise ConfigError(f"search.front must be the path of a file, got {shorten(front)}")
    tokens = config["budget"]["tokens"]
    replaced = {"search", "search.n", "search.front"}
    others = [override for override in overrides if override.lstrip("+").partition("=")[0] not in replaced]
    budget = AutoSearch(
        n=DEFAULT_N if search["n"] is None and tokens is None else search["n"],
        tokens=tokens,
        thinking=bool(config["model"].get("thinking")),
        scorer=choices["scorer"],
        model=str(config["model"]["name"] or choices["model"]),  # no name of a server's model was given
        task=choices.get("task"),
        given=dict(pair for override in others if (pair := _split(override.lstrip("+")))[1]),
    )
    row, why = choose_search(read_front(None if front is None else Path(front)), budget)
    return [*others, *row.overrides], {"front": front, "search": row.label, "why": why}


def _explain(row: FrontEntry, count: int, budget: AutoSearch) -> str:
    others = [
        f"{name}={value}"
        for name, value, measured in (
            ("scorer", budget.scorer, row.scorer),
            ("model", budget.model, row.model),
            ("task", budget.task, row.task),
        )
        if measured is not None and value not in (measured, None) and name not in _keys(row.settings)
    ]
    differs = f"; yours is {', '.join(others)}, so measure your own with --write-front" if others else ""
    scorer = "" if row.scorer is None else f", scorer {row.scorer}"
    return (
        f"search=auto is {row.label}: {row.accuracy:.3f} ({row.low:.3f} to {row.high:.3f}) right with "
        f"{row.tokens:,.0f} tokens, as many as {row.samples:.1f} solutions, the most accurate of {count} within "
        f"{budget}; on {row.problems} problems of {row.task}, model {row.model}{scorer} ({row.source}){differs}"
    )


def _narrow(rows: Sequence[FrontEntry], fits: Callable[[FrontEntry], bool], why_none: str) -> list[FrontEntry]:
    left = [row for row in rows if fits(row)]
    if not left:
        raise ConfigError(f"search=auto finds no measured search: {why_none}; choose a search, or another search.front")
    return left


def _conflicts(row: FrontEntry, given: Mapping[str, str]) -> bool:
    return any(given.get(key, value) != value for key, value in map(_split, row.settings))


def _keys(settings: Iterable[str]) -> set[str]:
    return {_split(setting)[0] for setting in settings}


def _split(setting: str) -> tuple[str, str]:
    key, _, value = setting.partition("=")
    return key, value


def _read_search(row: object) -> FrontEntry:
    """Reads one row of a table. Raises: TypeError or ValueError."""
    if not isinstance(row, Mapping):
        raise ValueError(f"a search must be a mapping, got {shorten(row)}")
    known = {field.name: field.type for field in fields(FrontEntry)}
    if missing := sorted(known.keys() ^ row.keys()):
        raise ValueError(
            f"a search has the fields {', '.join(known)}; one lacks or adds {', '.join(map(str, missing))}"
        )
    for name, kind in known.items():
        value = row[name]
        is_right = {
            "str": isinstance(value, str),
            "tuple[str, ...]": isinstance(value, str),
            "str | None": value is None or isinstance(value, str),
            "bool": isinstance(value, bool),
            "int": isinstance(value, int) and not isinstance(value, bool) and value > 0,
            "float": is_number(value, low=0, high=float("inf")),
            "float | None": value is None or is_number(value, low=0, high=float("inf")),
        }.get(str(kind), True)
        if not is_right:
            raise ValueError(f"{name} of {row['search']} must be {kind}, got {shorten(value)}")
    settings = tuple(shlex.split(row["settings"]))
    if wrong := [setting for setting in settings if "=" not in setting]:
        raise ValueError(f"settings of {row['search']} must be NAME=VALUE, got {wrong[0]}")
    return FrontEntry(**{**{str(name): row[name] for name in row}, "settings": settings})
