"""Packs what a report reads of a finished run into one line of JSON of a few kilobytes, and unpacks it."""

from __future__ import annotations

import math
import zlib
from base64 import b85decode, b85encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.core import Usage
from reason.bench.runs import RunOutcome, RunSpec
from reason.grading import Grade
from reason.runs.result import ProblemResult, SampleResult
from search.kv import KVFootprint

Ints = npt.NDArray[np.int64]

USAGE = (
    *("tokens", "forwards", "small_tokens", "small_forwards", "discarded_tokens", "cancelled"),
    *("scorer_calls", "scored_tokens"),
)
KV = ("frontier_tokens", "kept_tokens", "peak_tokens")
COLUMNS: dict[str, Callable[[ProblemResult], float]] = {
    "right": lambda row: row.is_correct,
    "gold": lambda row: row.has_gold,
    **{name: lambda row, name=name: getattr(row.usage, name) for name in USAGE},  # type: ignore[misc]
    "centiseconds": lambda row: 100 * row.usage.seconds,
    **{name: lambda row, name=name: getattr(row.kv, name) for name in KV},  # type: ignore[misc]
}
"""The numbers that a line keeps of each problem, rounded to whole ones."""
SAMPLED = "best_of_n"
"""The search of which a line keeps the samples: they are the baselines at equal tokens."""
SCORE_UNIT = 1e-6
"""Rows have scores rounded to six places, so no digit is lost."""
NO_SCORE = -(2**40)


def pack_run(outcome: RunOutcome) -> dict[str, Any]:
    """Returns what a line keeps of a run of one seed; its timeline is not kept."""
    rows = outcome.rows
    about = {key: value for key, value in rows[0].metadata.items() if key not in ("settings", "config", "versions")}
    samples = pack_samples(rows) if outcome.spec.search == SAMPLED else {}
    return {
        "problems": len(rows),
        "about": about,
        "versions": rows[0].metadata.get("versions", {}),
        "totals": outcome.totals,
        "ids": pack_text("\n".join(row.id for row in rows)),
        "columns": list(COLUMNS),
        "values": pack_ints([[round(value_of(row)) for row in rows] for value_of in COLUMNS.values()]),
        **samples,
    }


def unpack_run(line: Mapping[str, Any], spec: RunSpec, num_problems: int) -> RunOutcome:
    """Returns the first problems of a run as its rows had them, without texts and trees.

    Raises: KeyError, TypeError or ValueError if it is no such line.
    """
    ids = unpack_text(line["ids"]).split("\n")
    columns = dict(zip(line["columns"], unpack_ints(line["values"], len(line["columns"])).tolist(), strict=True))
    samples = unpack_samples(line, len(ids))
    metadata = {**line["about"], "versions": line["versions"]}
    rows = [
        ProblemResult(
            id=ids[i],
            gold="" if columns["gold"][i] else None,
            grade=Grade("right" if columns["right"][i] else "wrong"),
            samples=samples[i],
            usage=Usage(**{name: columns[name][i] for name in USAGE}, seconds=columns["centiseconds"][i] / 100),
            kv=KVFootprint(**{name: columns[name][i] for name in KV}),
            metadata=metadata,
        )
        for i in range(min(num_problems, len(ids)))
    ]
    return RunOutcome(spec, rows, line["totals"], [])


def pack_samples(rows: Sequence[ProblemResult]) -> dict[str, str]:
    """Returns the samples of each problem: how many, which have the same answer and are right, and their scores."""
    samples = [sample for row in rows for sample in row.samples]
    scores = [
        NO_SCORE if s.score is None or not math.isfinite(s.score) else round(s.score / SCORE_UNIT) for s in samples
    ]
    codes = [code for row in rows for code in _answer_codes(row.samples)]
    return {"counts": pack_ints([[len(row.samples) for row in rows]]), "samples": pack_ints([codes, scores])}


def unpack_samples(line: Mapping[str, Any], num_problems: int) -> list[tuple[SampleResult, ...]]:
    """Returns the samples of each problem; none where the line has none. Equal answers have equal names."""
    if "samples" not in line:
        return [()] * num_problems
    codes, scores = unpack_ints(line["samples"], 2).tolist()
    samples = (_unpack_sample(code, score) for code, score in zip(codes, scores, strict=True))
    counts = unpack_ints(line["counts"], 1)[0].tolist()
    return [tuple(next(samples) for _ in range(number)) for number in counts]


def pack_ints(table: Sequence[Sequence[int]]) -> str:
    """Packs rows of equally many integers as text: bytes of the same place together, compressed, in base 85.

    >>> unpack_ints(pack_ints([[1, -2, 300], [4, 5, 6]]), 2).tolist()
    [[1, -2, 300], [4, 5, 6]]
    """
    planes = np.array(table, dtype="<i8").reshape(-1, 1).view(np.uint8).T
    return b85encode(zlib.compress(planes.tobytes(), 9)).decode()


def unpack_ints(text: str, num_rows: int) -> Ints:
    """Unpacks the rows of `pack_ints`, `[num_rows, ...]`. Raises: ValueError or zlib.error if it is no such text."""
    planes = np.frombuffer(zlib.decompress(b85decode(text)), dtype=np.uint8).reshape(8, -1)
    return np.ascontiguousarray(planes.T).view("<i8").reshape(num_rows, -1).astype(np.int64)


def pack_text(text: str) -> str:
    """Compresses a text."""
    return b85encode(zlib.compress(text.encode(errors="surrogatepass"), 9)).decode()


def unpack_text(text: str) -> str:
    """Returns the text that `pack_text` compressed."""
    return zlib.decompress(b85decode(text)).decode(errors="surrogatepass")


def _answer_codes(samples: Sequence[SampleResult]) -> list[int]:
    """Returns a number per sample: twice that of its answer in order of appearance, 0 without one, plus 1 if right."""
    numbers: dict[str | None, int] = {None: 0}
    return [2 * numbers.setdefault(sample.answer, len(numbers)) + sample.is_correct for sample in samples]


def _unpack_sample(code: int, score: int) -> SampleResult:
    answer, right = divmod(code, 2)
    return SampleResult(
        node=0,
        answer=str(answer) if answer else None,
        grade="right" if right else "wrong",
        score=None if score == NO_SCORE else round(score * SCORE_UNIT, 6),
    )
