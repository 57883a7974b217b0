"""Solvers whose solutions a language model judges: in this process, on a server, and a model of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import reason
from reason import ConfigError
from reason.scorers.ensemble import EnsembleScorer
from reason.scorers.judge import JudgeScorer
from reason.scorers.none import NoScorer
from reason.solver import Solver
from search.strategies.beam_search import BeamSearch
from search.strategies.self_consistency import SelfConsistency
from search.strategies.tournament import PairVerdict, SolutionReferee, TournamentRules
from search.strategy import Budget, SearchResult
from tests.support.judging_server import JudgingServer
from tests.support.toy_search import ToyScorer, extract_answer
from tests.support.toy_solver import toy_solver


@pytest.fixture
def server() -> Iterator[JudgingServer]:
    server = JudgingServer()
    yield server
    server.close()


def load_served(server: JudgingServer, *overrides: str) -> Solver:
    engine = ["model=served", "engine=openai", f"engine.urls=[{server.url}]", "engine.model=toy"]
    return reason.load(*engine, "search=self_consistency", "search.n=6", "scorer=judge", *overrides)


def solve_served(server: JudgingServer, *overrides: str) -> SearchResult:
    with load_served(server, *overrides) as solver:
        return solver.solve("why?").result


def answers_of(result: SearchResult) -> set[str]:
    return {candidate.answer for candidate in result.candidates if candidate.answer is not None}


def test_served_model_judges_its_own_solutions(server: JudgingServer) -> None:
    result = solve_served(server, "search.select=best", "scorer.samples=2")
    assert answers_of(result) == {"0", "1", "2"}
    assert {c.score for c in result.candidates if c.answer == "2"} == {1.0}
    assert {c.score for c in result.candidates if c.answer != "2"} == {0.0}
    assert result.score == 1
    # equal solutions are judged once, in two samples each
    assert len(server.verdicts) == result.usage.scorer_calls == 6
    assert (result.usage.calls, result.usage.scored_tokens) == (6, 6 * 110)
    assert all("why?" in text for text in server.verdicts)


def test_served_model_holds_a_tournament_and_scores_nothing(server: JudgingServer) -> None:
    result = solve_served(server, "search.select=tournament", "scorer.judges=pairs", "scorer.samples=1")
    assert answers_of(result) == {"0", "1", "2"}
    assert result.best in [c.node for c in result.candidates if c.answer == "2"]
    assert {c.score for c in result.candidates} == {None}
    assert len(server.verdicts) == result.usage.scorer_calls == 4  # two matches, in both orders
    assert result.votes["2"] > max(result.votes["0"], result.votes["1"])


def test_model_of_its_own_judges_on_another_server(server: JudgingServer) -> None:
    other = JudgingServer()
    try:
        small = ["engine@small=openai", f"small.urls=[{other.url}]", "small.model=toy", "small.path=bytes"]
        solve_served(server, "search.select=best", "scorer.model=small", *small)
        assert (len(server.requests) - len(server.verdicts), len(server.verdicts)) == (len(server.requests), 0)
        assert len(other.verdicts) == 3 * 8
    finally:
        other.close()


def test_server_judges_thoughts_of_a_model_that_is_here(server: JudgingServer) -> None:
    """A server's model is of another family: nothing of the thinker's prompt and tags goes to it."""
    small = ["engine@small=openai", f"small.urls=[{server.url}]", "small.model=toy", "small.path=bytes"]
    search = ["search=self_consistency", "search.n=2", "search.select=best", "search.sampling.max_tokens=400"]
    with reason.load("model=thinker", *search, "scorer=judge", "scorer.model=small", *small) as solver:
        result = solver.solve("2, 3, 4: make 9").result
        assert len(server.requests) == len(server.verdicts) == result.usage.scorer_calls > 0
        assert all("2, 3, 4: make 9" in text and "<think>" not in text for text in server.requests)
        solver.assert_invariants()


def test_missing_server_of_the_judge_is_named(server: JudgingServer) -> None:
    small = ["engine@small=openai", "small.urls=[http://127.0.0.1:9/v1]", "small.model=toy", "small.path=bytes"]
    with pytest.raises(ConfigError, match=r"small\.urls"):
        solve_served(server, "scorer.model=small", *small)


def test_model_in_this_process_judges_with_log_probabilities(tiny_writer: Path) -> None:
    settings = [f"model.path={tiny_writer}", "search=self_consistency", "search.n=4", "search.select=weighted"]
    for model, more in (("target", []), ("small", [f"small.path={tiny_writer}"])):
        with reason.load(*settings, "scorer=judge", f"scorer.model={model}", *more) as solver:
            scorer = solver.scorer
            assert isinstance(scorer, JudgeScorer)
            assert (scorer.loaded_model.engine is solver.engine) == (model == "target")
            result = solver.solve("why?").result
            assert 0 < result.usage.scorer_calls <= 4
            assert result.usage.scored_tokens > 0
            assert result.best is not None
            solver.assert_invariants()


def test_ensemble_scores_and_its_judge_compares(tiny_writer: Path) -> None:
    members = "scorer.members=[likelihood,{scorer: judge, judges: pairs}]"
    settings = [f"model.path={tiny_writer}", "search=beam_search", "search.n=4", "search.select=tournament"]
    with reason.load(*settings, "scorer=ensemble", members) as solver:
        assert isinstance(solver.scorer, EnsembleScorer)
        result = solver.solve("why?").result
        assert all(candidate.score is not None for candidate in result.candidates)
        num_answers = len(answers_of(result))
        num_scored = sum(node.score is not None for node in result.tree.nodes)
        assert num_scored == len(result.tree.nodes)
        assert (result.usage.scorer_calls >= 2 * (num_answers - 1)) == (num_answers > 1)


class ToyJudge(NoScorer):
    """Scores as the toy does, and prefers the larger answer after `waits_s`."""

    gives_scores = True
    tournament = TournamentRules()

    def __init__(self, waits_s: float = 0.0) -> None:
        object.__setattr__(self, "waits_s", waits_s)

    def bind(self, question: str, prompt: Any) -> Any:
        return ToyScorer()

    def bind_referee(self, question: str) -> SolutionReferee:
        return LargerAnswerReferee(self)


class LargerAnswerReferee:
    def __init__(self, judge: Any) -> None:
        self.judge = judge

    async def compare_solutions(self, first: str, second: str) -> PairVerdict:
        await asyncio.sleep(self.judge.waits_s)
        return PairVerdict(float((extract_answer(first) or "") > (extract_answer(second) or "")))


STRATEGIES: list[Any] = [SelfConsistency(n=8, select="tournament"), BeamSearch(n=8, select="tournament")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tournament_ends_every_kind_of_search(strategy: Any) -> None:
    with toy_solver(strategy, scorer=ToyJudge()) as solver:
        solution = solver.solve("toy?")
        again = solver.solve("toy?")
    assert solution.answer == max(answers_of(solution.result))
    assert (again.answer, again.votes) == (solution.answer, solution.votes)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_budget_of_seconds_holds_for_the_tournament(strategy: Any) -> None:
    with toy_solver(strategy, scorer=ToyJudge(waits_s=60), budget=Budget(seconds=0.5)) as solver:
        solution = solver.solve("toy?")
    assert solution.result.stop_reason == "budget"
    assert solution.answer is not None
    assert solution.votes[solution.answer] == max(solution.votes.values())


def test_tournament_without_a_judge_is_refused() -> None:
    with toy_solver(STRATEGIES[0]) as solver, pytest.raises(ValueError, match="choose scorer=judge"):
        solver.solve("toy?")
