"""The public names of `reason`."""

from __future__ import annotations

from importlib.metadata import version

import pytest

import reason


def test_public_names_of_reason_are_fixed() -> None:
    assert sorted(reason.__all__) == ["ConfigError", "Problem", "Solution", "Solver", "from_config", "load"]
    for name in reason.__all__:
        assert getattr(reason, name).__doc__


def test_names_that_are_made_when_asked_for_are_listed() -> None:
    assert {"load", "from_config", "__version__"} <= set(dir(reason))
    assert reason.__version__ == version("reason-search")


def test_unknown_name_of_reason_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        reason.lode  # noqa: B018


@pytest.mark.parametrize("method", ["solve", "asolve", "solve_many", "asolve_many", "submit", "close"])
def test_solver_has_its_public_methods(method: str) -> None:
    assert callable(getattr(reason.Solver, method))
