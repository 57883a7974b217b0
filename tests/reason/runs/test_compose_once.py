"""Hydra composes the settings of a run once, and those of what may be a sweep as ever."""

from __future__ import annotations

import pytest
from hydra._internal.hydra import Hydra
from omegaconf import OmegaConf

from reason.runs.command import compose_once
from tests.support.paths import CONF

FIND_MODE = Hydra.get_mode


@pytest.mark.parametrize("arguments", [[], ["question=1", "search.n=4"], ["+task=aime", "search=ets"]])
def test_mode_of_a_plain_run_is_not_composed(arguments: list[str]) -> None:
    with compose_once(arguments):
        assert Hydra.get_mode(None, None, arguments) is None  # type: ignore[arg-type]
    assert Hydra.get_mode is FIND_MODE


@pytest.mark.parametrize(
    "arguments", [["-m", "search.n=4,8"], ["+experiment=searches"], ["hydra.mode=MULTIRUN"], ["--config-dir", "mine"]]
)
def test_mode_of_what_may_be_a_sweep_is_asked(arguments: list[str]) -> None:
    with compose_once(arguments):
        assert Hydra.get_mode is FIND_MODE


def test_only_experiments_say_that_they_are_sweeps() -> None:
    """So nothing else can change the mode of a run without naming `hydra`, an experiment or a folder of settings."""
    with_mode = [file for file in CONF.rglob("*.yaml") if OmegaConf.select(OmegaConf.load(file), "hydra.mode")]
    assert with_mode
    assert {file.parent.name for file in with_mode} == {"experiment"}


def test_mode_is_asked_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), compose_once([]):
        raise ValueError("wrong")
    assert Hydra.get_mode is FIND_MODE
