"""What became of a problem, in a word and a sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Verdict(NamedTuple):
    """`kind` is for programs, `word` and `symbol` are for people: never a colour alone."""

    kind: str
    word: str
    symbol: str


VERDICTS = {
    verdict.kind: verdict
    for verdict in (
        Verdict("right", "correct", "✓"),
        Verdict("wrong", "wrong", "✗"),
        Verdict("no_answer", "no answer", "–"),
        Verdict("error", "error", "!"),
        Verdict("ungraded", "ungraded", "?"),
    )
}


def verdict_of(row: Mapping[str, Any]) -> Verdict:
    """The verdict on a result row; a row that says nothing is ungraded.

    >>> verdict_of({"grade": "right"}).word, verdict_of({"error": "ValueError: no"}).word, verdict_of({}).word
    ('correct', 'error', 'ungraded')
    """
    kind = "error" if row.get("error") else row.get("grade")
    return VERDICTS.get(str(kind), VERDICTS["ungraded"])
