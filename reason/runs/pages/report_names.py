"""Names the runs of a report by what differs between them: a short name, the line in the plot, and the colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reason.runs.gather import FoundRun

SWEPT_FIRST = "search.n"
NEVER_SWEPT = ("seed", "limit", "concurrency")
SWITCHED_OFF = ("off", "none")

Differences = Mapping[str, object]


class RunName(NamedTuple):
    """Names of one run, all for readers.

    short   all that differs, such as `ets n=16`
    series  the same without the swept setting: runs of one series are joined by a line
    point   the swept setting, such as `n=16`; "" where none is swept
    hue     the search, or another option that differs: runs of one hue have one colour
    """

    short: str
    series: str
    point: str
    hue: str


def name_runs(runs: Sequence[FoundRun]) -> list[RunName]:
    """Returns the names in the order of the runs; runs with equal settings are numbered."""
    differences = [run.differences for run in runs]
    swept, wording = find_swept_setting(differences), word_settings(differences)
    searches = [str(run.metadata.get("search", "")) for run in runs]
    names = []
    for run, search in zip(runs, searches, strict=True):
        words = {key: wording[key, str(value)] for key, value in run.differences.items()}
        series = " ".join(word for key, word in words.items() if key != swept)
        option = next((word for key, word in words.items() if "." not in key and key not in NEVER_SWEPT), series)
        hue = (search if len(set(searches) - {""}) > 1 else option) or search or run.label
        names.append(RunName(" ".join(words.values()) or run.label, series or hue, words.get(swept or "", ""), hue))
    return _number_equals(names)


def find_swept_setting(runs: Sequence[Differences]) -> str | None:
    """Returns the numeric setting that a line in the plot follows: `search.n`, or the one with the most values.

    >>> find_swept_setting([{"search": "ets", "budget.tokens": 64}, {"search": "ets", "budget.tokens": 128}])
    'budget.tokens'
    """
    values: dict[str, set[object]] = {}
    for run in runs:
        for key, value in run.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and key not in NEVER_SWEPT:
                values.setdefault(key, set()).add(value)
    several = {key: len(of_key) for key, of_key in values.items() if len(of_key) > 1}
    return SWEPT_FIRST if SWEPT_FIRST in several else max(several, key=several.__getitem__, default=None)


def word_settings(runs: Sequence[Differences]) -> dict[tuple[str, str], str]:
    """Returns the word of each (setting, value): as short as it can be without two settings being mistaken.

    >>> list(word_settings([{"search": "ets", "search.n": 4}, {"search": "mcts", "speculation": "off"}]).values())
    ['ets', 'n=4', 'mcts', 'no speculation']
    """
    pairs = list(dict.fromkeys((key, str(value)) for run in runs for key, value in run.items()))
    keys = list(dict.fromkeys(key for key, _ in pairs))
    last_parts = Counter(key.rpartition(".")[2] for key in keys)
    options = Counter(value for key, value in pairs if "." not in key)
    words = {}
    for key, value in pairs:
        is_number = value.replace(".", "", 1).lstrip("-").isdigit()
        if "." in key or is_number:
            last = key.rpartition(".")[2]
            words[key, value] = f"{last if last_parts[last] == 1 else key}={value}"
        elif value in SWITCHED_OFF:
            words[key, value] = f"no {key}"
        else:
            words[key, value] = value if options[value] == 1 else f"{key}={value}"
    return words


def _number_equals(names: Sequence[RunName]) -> list[RunName]:
    counts, before = Counter(name.short for name in names), Counter[str]()
    numbered = []
    for name in names:
        before[name.short] += 1
        suffix = f" #{before[name.short]}" if counts[name.short] > 1 else ""
        numbered.append(name._replace(short=name.short + suffix))
    return numbered
