"""Solutions that a search gave up while they were being written, in summaries and on the screen."""

from __future__ import annotations

from reason.runs.result import ProblemResult, SampleResult
from reason.runs.summary import summarise_results


def sample(finish: str, *, answer: str | None = None, score: float | None = None) -> SampleResult:
    grade = "no_answer" if answer is None else "right"
    return SampleResult.from_json(
        {"node": 0, "answer": answer, "grade": grade, "score": score, "tokens": 9, "finish": finish}
    )


def test_dropped_solutions_are_counted_apart() -> None:
    samples = (sample("eos", answer="7", score=0.3), sample("dropped"), sample("dropped"), sample("length"))
    summary = summarise_results([ProblemResult(id="p", gold="7", answer="7", samples=samples)])
    assert (summary["solutions"], summary["dropped"], summary["cut"]) == (4, 2, 1)
    assert summary["unscored"] == 1, "only the one that was cut: a dropped solution needs no score"
    assert summary["unfinished_thoughts"] == 0


def test_thought_of_a_dropped_solution_does_not_count_as_unfinished() -> None:
    data = sample("dropped").to_json() | {"thought_tokens": 9, "is_thought_finished": False}
    summary = summarise_results([ProblemResult(id="p", samples=(SampleResult.from_json(data),))])
    assert (summary["dropped"], summary["cut"], summary["unfinished_thoughts"]) == (1, 0, 0)
