"""A search is one class and one yaml, and a knob of all step searches one field and one line of yaml."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reason.config.compose import compose_settings, list_options
from reason.settings.validate import validate_settings
from search.step_search import StepSearch
from search.strategies.token_search import TokenSearch
from tests.support.searches import load_search_yaml, search_classes
from tests.support.toy_search import ToyEngine, run_search, write_five_steps

PLUG_IN = '''
from dataclasses import dataclass

from decoding.validation import require_count
from search.level_search import Allocation, Frontier, LevelSearch


@dataclass(frozen=True, kw_only=True)
class FirstBranches(LevelSearch):
    """Continues the first `num_first` branches of each level."""

    num_first: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("num_first", self.num_first, at_least=1)

    async def allocate_widths(self, frontier: Frontier, width: int) -> Allocation:
        widths = [0] * len(frontier.nodes)
        for i in range(width):
            widths[i % min(self.num_first, len(widths))] += 1
        return Allocation(widths)
'''
YAML = """
defaults:
  - _step_search
  - _self_
_target_: plug_in_first_branches.FirstBranches
n: 4
num_first: 2
keep_width: false
"""
SHARED = load_search_yaml("_step_search")
SHARED_KNOBS = {str(key) for key in SHARED if key != "defaults"} | {"sampling"}


@pytest.fixture
def plug_in(tmp_path: Path) -> Iterator[list[str]]:
    """The settings that load the plug-in and its yaml."""
    file = tmp_path / "plug_in_first_branches.py"
    file.write_text(PLUG_IN)
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "first_branches.yaml").write_text(YAML)
    yield [f"hydra.searchpath=[file://{tmp_path}]", f"plugins=[{file}]", "search=first_branches"]
    sys.modules.pop("plug_in_first_branches", None)


class TestPlugIn:
    def test_search_of_two_files_has_the_shared_knobs(self, plug_in: list[str]) -> None:
        spec = validate_settings(*compose_settings([*plug_in, "search.n=6", "search.depth=3", "search.merge=true"]))
        assert spec.strategy.by_steps
        assert spec.strategy.needs_scorer
        assert spec.strategy.needs_embedder
        result = run_search(spec.strategy, engine=ToyEngine(write_five_steps))
        assert max(node.depth for node in result.tree.nodes) == 3
        assert all(sum(map(bool, selection.widths)) <= 2 for selection in result.selections)

    def test_wrong_knob_of_the_plug_in_or_of_its_base_is_named(self, plug_in: list[str]) -> None:
        for wrong in ("search.num_first=0", "search.depth=0"):
            with pytest.raises(ValueError, match=f"{wrong.removesuffix('=0')} must be an int >= 1( or null)?, got 0"):
                validate_settings(*compose_settings([*plug_in, wrong]))


class TestSharedKnobs:
    def test_shared_yaml_names_fields_of_the_shared_dataclass(self) -> None:
        assert {field.name for field in dataclasses.fields(StepSearch)} - {"n"} == SHARED_KNOBS

    def test_shared_yaml_is_no_option(self) -> None:
        assert all(not name.startswith("_") for name in list_options("search"))
        with pytest.raises(ValueError, match="there is no search=_step_search"):
            compose_settings(["search=_step_search"])

    @pytest.mark.parametrize("name", search_classes(StepSearch))
    def test_every_step_search_inherits_shared_knobs_from_the_yaml_and_the_dataclass(self, name: str) -> None:
        yaml = load_search_yaml(name)
        assert yaml.defaults == ["_step_search", "_self_"]
        settings = compose_settings([f"search={name}"])[0]["search"]
        for knob in SHARED_KNOBS - {"sampling"} - set(yaml):
            assert settings[knob] == SHARED[knob], knob
        assert settings.keys() >= SHARED_KNOBS
        strategy_fields = {field.name for field in dataclasses.fields(search_classes()[name])}
        assert settings.keys() - {"_target_"} == strategy_fields

    def test_by_steps_is_false_for_searches_that_continue_no_branches(self) -> None:
        others = search_classes().keys() - search_classes(StepSearch).keys() - search_classes(TokenSearch).keys()
        assert not [name for name in others if search_classes()[name].by_steps]
