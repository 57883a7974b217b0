"""Settings of another shape than expected are one sentence that names them."""

from __future__ import annotations

import pytest

import reason
from reason import ConfigError

QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["search.sampling=5"], "search.sampling has settings of its own, as search.sampling.temperature=0.7; got 5"),
        (["budget=5"], "budget has settings of its own, as budget.NAME=VALUE; got budget=5"),
        (["~budget"], "budget is not set; choose budget=..., it cannot be left out"),
        (["~search"], "search is not set; choose search=..., it cannot be left out"),
        (["~seed"], "seed is not set; it cannot be left out"),
        (["+search=rebase"], "search is chosen already; write search=NAME, without +"),
        (["search._target_=search.strategies.beam_search.BeamSearhc"], "did you mean BeamSearch"),
        (["limit=3"], "limit is a setting of the command `reason solve`"),
        (["question=hi"], "question is a setting of the command `reason solve`"),
    ],
    ids=str,
)
def test_wrong_shape_is_named_before_a_model_loads(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        reason.load(*overrides)
    assert message in str(error.value)


def test_solver_refuses_options_of_other_types() -> None:
    with reason.load("search.n=2") as solver:
        with pytest.raises(ValueError, match="seed must be an int"):
            solver.with_options(seed=1.5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"strategy must be a search, .* got 'rebase'"):
            solver.with_options(strategy="rebase")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"budget must be a Budget, .* got 5"):
            solver.with_options(budget=5)  # type: ignore[arg-type]


def test_without_drafts_no_acceptance_rule_changes_the_samples() -> None:
    answers = []
    for rule in ("coupled", "greedy_match", "point_mass"):
        with reason.load("search=self_consistency", "search.n=8", "speculation=off", f"acceptance={rule}") as solver:
            answers.append(solver.solve(QUESTION).votes)
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) > 1
