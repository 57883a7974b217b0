"""The help of commands with settings: everything that can be typed is in it, with what it means."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from reason.commands.names import COMMANDS, PACKAGE, read_help
from reason.commands.settings_help import ADDED, find_config_folders, format_help, list_group, read_groups, show_help
from reason.config.compose import list_options

WITH_SETTINGS = {name: command for name, command in COMMANDS.items() if command.config is not None}


def help_of(name: str, *arguments: str, width: int = 100) -> str:
    command = COMMANDS[name]
    assert command.config is not None
    folders = find_config_folders(arguments)
    return format_help(name, command.config, read_help(PACKAGE, command.module), folders, width)


def config_of(config: str) -> DictConfig:
    parsed = OmegaConf.create(files("reason.conf").joinpath(f"{config}.yaml").read_text(encoding="utf-8"))
    assert isinstance(parsed, DictConfig)
    return parsed


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_help_names_each_setting_and_no_setting_of_hydra(name: str) -> None:
    lines = help_of(name).splitlines()
    config = config_of(str(WITH_SETTINGS[name].config))
    for setting in config:
        shown = any(line.startswith(f"{setting!s}:") for line in lines)
        assert shown == (setting not in ("defaults", "hydra"))


def test_help_has_the_groups_of_the_yaml_with_their_defaults_and_options() -> None:
    parsed = {
        str(group): option
        for entry in config_of("solve").defaults
        if isinstance(entry, DictConfig)
        for group, option in entry.items()
        if not str(group).startswith("override ")
    }
    groups = read_groups(files("reason.conf").joinpath("solve.yaml").read_text(encoding="utf-8"))
    assert {group.name: group.default for group in groups} == parsed
    text = help_of("solve")
    for group in groups:
        assert group.about
        assert f"  {group.name:14} {group.about}\n" in text
        options = list_group(group.name, find_config_folders([]))
        assert options == list_options(group.name.partition("@")[0])
        assert group.default is None or group.default in options


@pytest.mark.parametrize("config", ADDED)
def test_groups_to_add_exist_and_have_no_default(config: str) -> None:
    for group in ADDED[config]:
        assert list_group(group, find_config_folders([]))
        assert group not in {chosen for entry in config_of(config).get("defaults", []) for chosen in entry}


@pytest.mark.parametrize("given", [["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]])
def test_options_of_a_folder_of_the_user_are_listed(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "search").mkdir(parents=True)
    (tmp_path / "mine" / "search" / "my_search.yaml").write_text("n: 1\n")
    (tmp_path / "mine" / "search" / "_base.yaml").write_text("n: 1\n")
    monkeypatch.chdir(tmp_path)
    options = list_group("search", find_config_folders([*given, "--help"]))
    assert "my_search" in options
    assert "best_of_n" in options
    assert "_base" not in options


@pytest.mark.parametrize("width", [60, 100, 200])
def test_options_are_wrapped_to_the_terminal_and_none_is_cut(width: int) -> None:
    text = help_of("solve", width=width)
    listed = text.partition("GROUP=OPTION, the default")[2].partition("SETTING=VALUE")[0]
    lines = [line for line in listed.splitlines() if line.startswith("      ")]
    assert max(map(len, lines)) <= width
    words = {word.strip("[],") for line in lines for word in line.split()}
    assert {"qwen2.5-math-1.5b", "stand_draft_model", "synthetic_mixed"} <= words


def test_help_of_sweep_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_help("sweep", "solve", read_help(PACKAGE, "sweep"), []) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: reason sweep ")
    assert "--budget 2h" in text
