"""The public names of `reason`."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version

import pytest

import reason
from tests.support.paths import ROOT


def test_public_names_of_reason_are_fixed() -> None:
    names = ["ConfigError", "Problem", "Solution", "Solver", "asolve", "from_config", "load", "solve"]
    assert sorted(reason.__all__) == names
    for name in reason.__all__:
        assert getattr(reason, name).__doc__


def test_names_that_are_made_when_asked_for_are_listed() -> None:
    assert {"load", "from_config", "__version__"} <= set(dir(reason))
    assert reason.__version__ == version("reason-search")


def test_unknown_name_of_reason_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        reason.lode  # noqa: B018


@pytest.mark.parametrize(
    "method", ["solve", "asolve", "stream", "astream", "solve_many", "asolve_many", "submit", "close"]
)
def test_solver_has_its_public_methods(method: str) -> None:
    assert callable(getattr(reason.Solver, method))


def test_version_is_said_once_and_repeated_rightly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (cited,) = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert {cited, newest, reason.__version__} == {project["version"]}


def test_the_python_that_is_needed_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = project["requires-python"].removeprefix(">=")
    numbers = ", ".join(lowest.split("."))
    for file, text in (
        ("reason/__init__.py", f"({numbers})"),
        ("Makefile", f"({numbers})"),
        ("docs/index.md", f"Python {lowest} or newer"),
        ("reason/commands/doctor.py", f"{lowest} or newer"),
        (".github/workflows/check.yml", f'python-version: "{lowest}"'),
    ):
        assert text in (ROOT / file).read_text(encoding="utf-8"), file
