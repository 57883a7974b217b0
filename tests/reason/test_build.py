"""`load` and `from_config` return solvers that solve."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

import reason
from reason import ConfigError
from reason.config.compose import compose_settings


def test_load_returns_a_solver_that_solves(tiny: list[str]) -> None:
    with reason.load(*tiny, "search.n=3", "search.sampling.max_tokens=40") as solver:
        solution = solver.solve("What is 1+1?")
    assert len(solution.result.candidates) == 3
    solution.tree.assert_invariants()


def test_from_config_is_load_for_a_composed_config(tiny: list[str]) -> None:
    config, _ = compose_settings([*tiny, "search.n=2", "search.sampling.max_tokens=40"])
    with reason.from_config(OmegaConf.create(config)) as solver:
        assert len(solver.solve("What is 1+1?").result.candidates) == 2


def test_load_asks_for_settings_as_texts() -> None:
    with pytest.raises(ConfigError, match=r"load takes settings as texts, load\('search.n=4', ...\), got"):
        reason.load(["search.n=4"])  # type: ignore[arg-type]
