"""Code of the user runs only where `plugins` names it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reason import ConfigError
from reason.config import plugins
from reason.config.compose import compose_settings, instantiate
from reason.runs import resume
from reason.settings.validate import validate_settings
from reason.tasks.selection import select_task
from tests.support.paths import SCRIPTS

TASK = """
from reason import Problem
from reason.tasks.base import Task

class Searches:
    def __init__(self): pass

class Sums(Task):
    def __init__(self):
        super().__init__("sums", [Problem(id="sums/0", question="1+1?", answer="2")])
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test starts with the plugins and modules there were before it."""
    modules, trusted = set(sys.modules), set(plugins.trusted_modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("mine"):
            del sys.modules[name]
    plugins.trusted_modules.clear()
    plugins.trusted_modules.update(trusted)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine_sums.py"
    path.write_text(TASK)
    return path


def task_name(*settings: str) -> str:
    config, choices = compose_settings(["+task._target_=mine_sums.Sums", *settings])
    return select_task(config, choices, validate_settings(config, choices).scorer)[0].name


def test_plugin_may_be_a_file(file: Path) -> None:
    assert task_name(f"plugins=[{file}]") == "sums"
    assert task_name(f"plugins=[{file}]") == "sums"  # again, in the same process


def test_plugin_may_be_a_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    assert task_name("plugins=[mine_sums]") == "sums"


def test_importable_module_that_is_no_plugin_is_not_trusted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    with pytest.raises(ConfigError, match=r"task\._target_ must be one of ours .* or of plugins=\[...\], got 'mine_s"):
        task_name()
    assert "mine_sums" not in sys.modules


def test_trust_is_in_the_module_and_not_in_its_name_prefix(file: Path) -> None:
    plugins.load_plugins([str(file)])
    with pytest.raises(ConfigError, match="must be one of ours"):
        instantiate("task", {"_target_": "mine_sums_too.Sums"})
    with pytest.raises(ConfigError, match="must be one of ours"):
        instantiate("task", {"_target_": "os.system", "command": "true"})


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("no_such_module_here", "plugins must be a list of modules or files, got 'no_such_module_here'"),
        ([3], "plugins must be a list of modules or files, got [3]"),
        (["no_such_module_here"], "plugins: cannot import no_such_module_here (No module named"),
        (["no/such/mine_file.py"], "plugins: there is no file no/such/mine_file.py"),
        (["no/such/mine-file.py"], "plugins: the name of no/such/mine-file.py is not that of a module"),
    ],
)
def test_plugin_that_cannot_be_imported_is_named(entries: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        plugins.load_plugins(entries)


def test_plugin_file_does_not_replace_another_module(tmp_path: Path) -> None:
    for name in ("json.py", "colorsys.py"):  # one that is imported here, one that need not be
        (tmp_path / name).write_text("")
        with pytest.raises(ConfigError, match="there is another one; rename the file"):
            plugins.load_plugins([str(tmp_path / name)])


def test_failing_plugin_file_is_a_setting_error_and_is_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "mine_broken.py"
    file.write_text("raise RuntimeError('half way')")
    with pytest.raises(ConfigError, match=r"cannot import .*mine_broken\.py \(half way\)"):
        plugins.load_plugins([str(file)])
    assert "mine_broken" not in sys.modules
    with pytest.raises(ConfigError, match="must be one of ours"):
        instantiate("task", {"_target_": "mine_broken.Task"})


def test_resumed_run_does_not_run_plugin_code_of_its_saved_settings(file: Path, tmp_path: Path) -> None:
    """A run with plugins is resumed by naming them again."""
    config, choices = compose_settings(
        [f"plugins=[{file}]", "search._target_=mine_sums.Searches", "model.path=/no/such"]
    )
    (tmp_path / "run").mkdir()
    resume.save_settings(tmp_path / "run", config=config, choices=choices, about={})
    script = SCRIPTS / "solve.py"

    def complaint(*settings: str) -> str:
        command = [sys.executable, str(script), "resume=run", *settings]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 2
        return done.stderr

    assert "search._target_ must be one of ours" in complaint()
    assert "there is no setting search.sampling" in complaint(f"plugins=[{file}]")
