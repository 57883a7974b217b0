"""The public names exist, and nothing else is promised."""

from __future__ import annotations

import pytest

import reason


def test_the_public_names_are_these() -> None:
    assert sorted(reason.__all__) == ["ConfigError", "Problem", "Solution", "Solver", "from_config", "load"]
    for name in reason.__all__:
        assert getattr(reason, name).__doc__


def test_anything_else_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        reason.lode  # noqa: B018


@pytest.mark.parametrize("method", ["solve", "asolve", "solve_many", "asolve_many", "submit", "close"])
def test_a_solver_can(method: str) -> None:
    assert callable(getattr(reason.Solver, method))
