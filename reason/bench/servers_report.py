"""The comparison of SGLang servers as tables, and as a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from reason.bench.servers import NGRAM, OURS, PLAIN
from reason.bench.tables import Figures

WANTED = 1.1

RULES = {
    NGRAM: "SGLang's own code path for sampling over trees, with a stand-in for its compiled rule, for GPUs only: a "
    "coin per node keeps the first child at which the target's summed probabilities exceed it, else the target is "
    "sampled without those children. (On a CPU SGLang would otherwise keep the likeliest tokens at any temperature.)",
    OURS: "coupled acceptance; a node's noise, keyed by seed and position, decides the target's token, and a child is "
    "kept if it is that one.",
    "REASON_RECURSIVE": "recursive rejection over children drawn without replacement.",
}
"""What is kept of a draft at temperature 1."""

READING = """\
None of this changes the target's distribution, and the last table is a check of that: whoever keeps likely tokens too
often writes likelier texts than plain decoding. Accepted length is tokens per verification step of a branch, the one
nobody guessed included and the first one, which comes with the prompt, not; a mean over the families of problems.
SGLang's own acceptance rate counts padding as guesses and is not used."""


def tables(result: dict[str, Any]) -> list[Figures]:
    """All of a result's, the verdict first."""
    races = result["races"]
    return [
        _verdict(result["verdicts"]),
        _grid("Accepted length, by live branches", races, _length),
        _grid("Tokens per second relative to plain, by live branches", races, _speed),
        _grid("Tokens per second, by live branches", races, lambda race: f"{race['tokens_per_s']:,.0f}"),
        _grid("Mean log-probability of the tokens written", races, _logprob),
    ]


def verdicts(races: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each number of live branches at which both ran, our accepted length over that of SGLang's n-grams.

    >>> one = {"arm": "NGRAM", "live": 4, "accepted_length": 2.0}
    >>> verdicts([one, one | {"arm": "REASON", "accepted_length": 2.1}])
    [{'live': 4, 'ratio': 1.05, 'wanted': 1.1, 'verdict': 'short by 0.050'}]
    """
    lengths = {(race["arm"], race["live"]): race["accepted_length"] for race in races}
    found = []
    for arm, live in lengths:
        if arm == OURS and (NGRAM, live) in lengths:
            ratio = lengths[OURS, live] / lengths[NGRAM, live]
            verdict = "PASS" if ratio >= WANTED else f"short by {WANTED - ratio:.3f}"
            found.append({"live": live, "ratio": ratio, "wanted": WANTED, "verdict": verdict})
    return found


def markdown(result: dict[str, Any], command: str) -> str:
    """The whole report."""
    head = [
        "# SGLang on a CPU: plain, its n-grams, our speculation",
        "",
        f"`{command}`",
        "",
        ", ".join(f"{key} {value}" for key, value in result["machine"].items()) + f", SGLang {result['sglang']}",
        "",
        f"Bundled target, {result['problems']} held-out problems of {', '.join(result['families'])}, "
        f"{result['trajectories']} samples of each at temperature 1, at most {result['max_tokens']} tokens. Up to "
        f"{result['nodes'] - 1} guessed tokens for a branch and step (`--speculative-num-draft-tokens "
        f"{result['nodes']}`). Medians of {result['repeats']} turns of other samples; in each, every server decodes "
        "everything once, with an empty cache and nothing learned, while the others are paused.",
        "",
        "What is kept of a draft:",
        "",
        *(f"- {arm}: {rule}" for arm, rule in RULES.items() if any(race["arm"] == arm for race in result["races"])),
        "",
        READING,
        "",
    ]
    body = [line for figures in tables(result) for line in figures.markdown()]
    return "\n".join([*head, *body, "```json", json.dumps(result), "```", ""])


def _verdict(found: Sequence[dict[str, Any]]) -> Figures:
    rows = [[str(one["live"]), f"{one['wanted']:g}", f"{one['ratio']:.3f}", one["verdict"]] for one in found]
    return Figures(f"Accepted length of {OURS} over {NGRAM}'s", ["live", "wanted", "got", "verdict"], rows)


def _length(race: dict[str, Any]) -> str:
    lengths = race["accepted_lengths"]
    around = "" if race["arm"] == PLAIN else f" ({min(lengths):.2f}-{max(lengths):.2f})"
    return f"{race['accepted_length']:.2f}{around}"


def _speed(race: dict[str, Any]) -> str:
    speeds = race["speeds"]
    around = "" if race["arm"] == PLAIN else f" ({min(speeds):.2f}-{max(speeds):.2f})"
    return f"{race['speed']:.2f}x{around}"


def _logprob(race: dict[str, Any]) -> str:
    return f"{median(race['logprobs']):.3f} ({min(race['logprobs']):.3f} to {max(race['logprobs']):.3f})"


def _grid(title: str, races: Sequence[dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> Figures:
    """A row for each arm, a column for each number of live branches."""
    cells = {(race["arm"], race["live"]): cell(race) for race in races}
    arms, live = (list(dict.fromkeys(race[key] for race in races)) for key in ("arm", "live"))
    return Figures(title, ["", *map(str, live)], [[arm, *(cells[arm, n] for n in live)] for arm in arms])
