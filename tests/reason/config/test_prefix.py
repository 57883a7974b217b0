"""`reason.search` and the others are the packages beside `reason`: one module under both names."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.resources import files

import pytest

from reason.config import compose
from reason.config.prefix import canonical_name, installed_name
from tests.support.paths import CONF


@pytest.mark.parametrize("name", ["search", "decoding", "search.strategies.ets", "decoding.speculation.drafters"])
def test_both_names_give_one_module(name: str) -> None:
    assert import_module(f"reason.{name}") is import_module(name)


@pytest.mark.parametrize("first", ["reason.search.tree", "search.tree"])
def test_classes_are_the_same_whichever_name_is_imported_first(first: str) -> None:
    second = canonical_name(first) if first.startswith("reason.") else installed_name(first)
    code = (
        f"import reason\nimport {first} as one\nimport {second} as two\n"
        "print(one.SearchTree is two.SearchTree, one.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "search.tree"]


def test_options_are_found_below_the_prefix() -> None:
    names = {file.name for file in files("reason.conf").iterdir()}
    assert {"solve.yaml", "search"} <= names
    assert names >= {file.name for file in CONF.iterdir() if not file.name.startswith("__")}


def test_module_that_is_not_there_is_said_by_the_name_that_was_asked_for() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"reason\.search\.nothing"):
        import_module("reason.search.nothing")
    with pytest.raises(ModuleNotFoundError, match=r"reason\.searching"):
        import_module("reason.searching")


@pytest.mark.parametrize("name", ["search.x.Y", "decoding.core.Z", "conf", "reason.solver.Solver", "mine.search.X"])
def test_names_are_translated_back(name: str) -> None:
    assert canonical_name(installed_name(name)) == name


def test_settings_may_name_a_class_with_the_prefix() -> None:
    config, _ = compose.compose_settings(["search._target_=reason.search.strategies.rebase.Rebase", "search=rebase"])
    assert config["search"]["_target_"] == "search.strategies.rebase.Rebase"
    from search.strategies.rebase import Rebase

    assert type(compose.instantiate("search", config["search"])) is Rebase
