"""The result of one problem as a typed row, and the file `results.jsonl` that holds one row per problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from decoding.core import FinishReason, Usage
from reason.grading import NO_ANSWER, NO_GOLD, Grade
from reason.grading.grade import GradeValue
from reason.problem import Problem, Solution
from reason.runs.json_files import (
    append_json_lines,
    format_json_line,
    parse_json,
    read_whole_lines,
    write_atomically,
)
from reason.runs.metrics import GradedSample
from reason.runs.output_folder import OutputError, OutputFolder
from reason.runs.row_types import require_types
from search.kv import KVFootprint, measure_kv
from search.strategy import Candidate
from search.tree_export import TreeShape, shape_statistics

TextGrader = Callable[[Problem, str], Grade]
"""Grades a whole solution text: some problems are graded by their steps."""

UNSTABLE_USAGE_FIELDS = (
    *("seconds", "cached_tokens", "scored_tokens", "forwards", "small_forwards"),
    *("drafted", "accepted"),
)
"""Fields of `usage` that differ between equal runs: they depend on time, on the cache and on the draft length."""

_OLD_USAGE_FIELDS = {"draft_tokens": "small_tokens", "draft_forwards": "small_forwards"}
_THOUGHT_FIELDS = ("thought_tokens", "is_thought_finished")
_FORMER_USAGE_FIELDS = ("round_seconds", "plain_seconds")


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """One candidate solution of a problem.

    node                 its last step in the tree
    step_scores          one score per step of its path; None means not scored
    tokens               generated tokens on its path
    thought_tokens       of these, tokens of its thought; None where the model writes none (`model.thinking`)
    is_thought_finished  whether its thought was closed; None likewise
    """

    node: int
    answer: str | None
    grade: GradeValue
    score: float | None
    step_scores: tuple[float | None, ...] = ()
    tokens: int = 0
    finish: FinishReason | None = None
    thought_tokens: int | None = None
    is_thought_finished: bool | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads a sample of a row."""
        return cls(**{**data, "step_scores": tuple(data.get("step_scores") or ())})

    def to_json(self) -> dict[str, Any]:
        """Returns the sample as plain data; what does not apply is left out."""
        data = asdict(self) | {"step_scores": list(self.step_scores)}
        return {name: value for name, value in data.items() if value is not None or name not in _THOUGHT_FIELDS}

    @property
    def is_correct(self) -> bool:
        """True for the grade `right`."""
        return self.grade == "right"

    @property
    def is_dropped(self) -> bool:
        """True where the search gave the solution up while it was being written."""
        return self.finish == "dropped"

    @property
    def is_cut(self) -> bool:
        """True where the solution ended at a limit, or inside its thought, and has no answer."""
        is_whole = self.finish in ("eos", "stop") and self.is_thought_finished is not False
        return self.answer is None and not is_whole and not self.is_dropped


@dataclass(frozen=True, kw_only=True)
class ProblemResult:
    """Everything that one problem gave; numbers are rounded to six places.

    gold      the gold answer, None if unknown
    answer    the chosen answer in its canonical spelling, None if no solution has one
    text      the chosen solution's text without its thought
    thought   the chosen solution's thought; "" without one, and then not in the row
    votes     answer -> total weight under the rule that chose
    stopped   `done`, `budget`, `decided` (see `search.strategy.SearchResult`) or `error`
    nodes     steps in the tree
    shape     statistics of the tree's shape; None for a failed problem and in rows of earlier releases
    error     exception of a failed problem, None otherwise
    is_trusted  see `reason.problem.Solution`
    metadata  the run's keys: task, model, search, seed, config, versions, `lossy`, ...; free-form
    """

    id: str
    question: str = ""
    gold: str | None = None
    answer: str | None = None
    grade: Grade = NO_GOLD
    score: float | None = None
    text: str = ""
    thought: str = ""
    votes: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[SampleResult, ...] = ()
    stopped: str = "done"
    nodes: int = 0
    kv: KVFootprint = field(default_factory=KVFootprint)
    usage: Usage = field(default_factory=Usage)
    error: str | None = None
    shape: TreeShape | None = None
    is_trusted: bool | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def from_solution(
        cls, solution: Solution, grade_text: TextGrader, metadata: Mapping[str, object] | None = None
    ) -> Self:
        """Grades a solution and each of its candidates."""
        problem, result = solution.problem, solution.result
        kv: dict[str, Any] = {name: _round6(value) for name, value in asdict(measure_kv(result)).items()}
        return cls(
            id=problem.id,
            question=problem.question,
            gold=problem.answer,
            answer=solution.answer,
            grade=grade_text(problem, solution.reader.answer_part(solution.full_text)),
            score=_round_score(solution.score),
            text=solution.text,
            thought=solution.thought,
            votes={answer: _round6(votes) for answer, votes in result.votes.items()},
            samples=tuple(_sample_result(solution, candidate, grade_text) for candidate in result.candidates),
            stopped=result.stop_reason,
            nodes=len(result.tree),
            kv=KVFootprint(**kv),
            usage=Usage(**asdict(result.usage) | {"seconds": _round6(result.usage.seconds)}),
            shape=shape_statistics(result.tree),
            is_trusted=solution.is_trusted,
            metadata=metadata or {},
        )

    @classmethod
    def from_error(cls, problem: Problem, error: Exception, metadata: Mapping[str, object] | None = None) -> Self:
        """Returns the row of a problem that failed."""
        return cls(
            id=problem.id,
            question=problem.question,
            gold=problem.answer,
            grade=NO_ANSWER,
            stopped="error",
            error=f"{type(error).__name__}: {error}",
            metadata=metadata or {},
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads a row; only `id` is required, and rows of the last release (`spent`, `draft_tokens`) are read too.

        >>> result = ProblemResult.from_json({"id": "p", "grade": "right", "gold": "4", "seed": 0})
        >>> result.is_correct, result.usage.tokens, result.metadata
        (True, 0, {'seed': 0})

        Raises: KeyError or TypeError if `data` is not a result row.
        """
        row = dict(data)
        usage = row.pop("usage", None) or row.pop("spent", None) or {}
        shape: dict[str, Any] | None = row.pop("shape", None)
        grade, reason = row.pop("grade", "ungraded"), row.pop("reason", "")
        no_gold = grade == "ungraded" and row.get("gold") is None  # its reason is the same in all rows: not written
        known: dict[str, Any] = {
            "grade": NO_GOLD if no_gold else Grade(grade, reason),
            "samples": tuple(SampleResult.from_json(sample) for sample in row.pop("samples", None) or ()),
            "kv": KVFootprint(**(row.pop("kv", None) or {})),
            "shape": None if shape is None else TreeShape(**shape | {"width_by_depth": tuple(shape["width_by_depth"])}),
            "usage": _read_usage(usage),
        }
        for derived in ("spent", "accepted_length", "speedup"):  # derived, or no longer written
            row.pop(derived, None)
        known |= {name: row.pop(name) for name in _FIELDS if name in row}
        return cls(**known, metadata=row)

    def to_json(self) -> dict[str, Any]:
        """Returns the row as plain data; the order of its keys is fixed."""
        reason = {"reason": self.grade.reason} if self.grade.reason and self.has_gold else {}
        return {
            "id": self.id,
            "question": self.question,
            "gold": self.gold,
            "answer": self.answer,
            "grade": self.grade.value,
            **reason,
            "score": self.score,
            "is_trusted": self.is_trusted,
            "text": self.text,
            **({"thought": self.thought} if self.thought else {}),
            "votes": dict(self.votes),
            "samples": [sample.to_json() for sample in self.samples],
            "stopped": self.stopped,
            "nodes": self.nodes,
            "kv": asdict(self.kv),
            "usage": asdict(self.usage),
            "accepted_length": _round_score(self.usage.accepted_length),
            "error": self.error,
            "shape": None if self.shape is None else asdict(self.shape),
            **self.metadata,
        }

    @property
    def has_gold(self) -> bool:
        """True where there is a gold answer, so that the answer counts in an accuracy."""
        return self.gold is not None

    @property
    def is_correct(self) -> bool:
        """True where the chosen answer equals the gold answer; a failed problem is not correct."""
        return self.grade.value == "right" and self.error is None

    @property
    def lossy(self) -> str | None:
        """Names the settings that change the distribution of the text; None if it is that of the target model."""
        lossy = self.metadata.get("lossy")
        return None if lossy is None else str(lossy)

    @property
    def graded_samples(self) -> list[GradedSample]:
        """The samples as `reason.runs.metrics` takes them."""
        return [GradedSample(s.answer, s.is_correct if self.has_gold else None, s.score) for s in self.samples]

    def summary_fields(self) -> dict[str, object]:
        """Returns the fields of the log line of a finished problem."""
        row = self.to_json()
        names = ("gold", "answer", "grade", "score", "stopped", "nodes", "accepted_length", "error")
        chosen = {name: row[name] for name in names}
        return {"problem": self.id, **chosen, "samples": len(self.samples), **asdict(self.usage)}


_FIELDS = tuple(f.name for f in fields(ProblemResult) if f.name != "metadata")


def _read_usage(saved: Mapping[str, Any]) -> Usage:
    named = {_OLD_USAGE_FIELDS.get(name, name): value for name, value in saved.items()}
    return Usage(**{name: value for name, value in named.items() if name not in _FORMER_USAGE_FIELDS})


class ResultFile:
    """`results.jsonl`: rows are appended as problems finish, and each is on disk when `append_result` returns.

    The last row of a problem counts: a failed problem that is tried again gets another row, and two processes that
    finish a run at once may both write one. Every row is checked: a broken one is an error, never skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._exists = False

    def read_results(self) -> dict[str, ProblemResult]:
        """Reads the last row of each problem, by id; a half-written last line does not count.

        Raises: ValueError naming the line if any other line is broken; OutputError if the file is not a regular one.
        """
        if self._exists and not self.path.exists():
            raise OutputError(f"{self.path} has vanished")
        self._exists = self.path.exists()
        return parse_results(read_whole_lines(self.path), self.path)

    def append_result(self, result: ProblemResult) -> None:
        """Appends one row, on disk on return. *Mutates* the file, which is created if it never was there.

        Raises: OutputError.
        """
        append_json_lines(self.path, [result.to_json()], create=not self._exists)
        self._exists = True

    def reorder_results(self, ids: Iterable[str]) -> list[ProblemResult]:
        """Rewrites the file, rows of `ids` first and in their order, one row each; returns the rows of `ids`.

        *Mutates* the file, atomically. Raises: as `read_results`.
        """
        if not self.path.exists() and not self._exists:
            return []
        with OutputFolder(self.path.parent).lock(self.path.name):  # or a row of another process could get lost
            results = self.read_results()
            ordered = [results.pop(problem_id) for problem_id in ids if problem_id in results]
            rows = [*ordered, *results.values()]
            write_atomically(self.path, b"".join(format_json_line(result.to_json()) for result in rows))
        return ordered


def parse_results(lines: Sequence[bytes], path: Path) -> dict[str, ProblemResult]:
    """Parses JSON lines into the last row of each problem, by id.

    Raises: ValueError naming `path` and the line that is not a result row.
    """
    results: dict[str, ProblemResult] = {}
    for number, line in enumerate(lines, 1):
        try:
            result = _parse_result(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}, line {number}: not a result row ({error}); delete the line, and its problem is solved again"
            ) from None
        results[result.id] = result
    return results


def _parse_result(line: bytes) -> ProblemResult:
    row = parse_json(line)
    if not isinstance(row, dict):
        raise TypeError("it is not an object")
    if "id" not in row:
        raise KeyError("id")
    result = ProblemResult.from_json(row)
    require_types(result)
    return result


def _sample_result(solution: Solution, candidate: Candidate, grade_text: TextGrader) -> SampleResult:
    tree, reader = solution.tree, solution.reader
    path, full_text = tree.path_nodes(candidate.node), tree.path_text(candidate.node)
    thinks, finish = reader.thinking is not None, tree.nodes[candidate.node].finish
    return SampleResult(
        node=candidate.node,
        answer=candidate.answer,
        grade=grade_text(solution.problem, "" if finish == "dropped" else reader.answer_part(full_text)).value,
        score=_round_score(candidate.score),
        step_scores=tuple(_round_score(tree.nodes[i].score) for i in path),
        tokens=sum(len(tree.nodes[i].step.tokens) for i in path),
        finish=finish,
        thought_tokens=sum(reader.count_thought_tokens(tree, candidate.node).values()) if thinks else None,
        is_thought_finished=reader.split(full_text).is_finished if thinks else None,
    )


def _round6(number: float) -> float:
    return round(number, 6)


def _round_score(number: float | None) -> float | None:
    return None if number is None else round(number, 6)
