"""Tools of a checkout: what they count, and which names they take."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from tests.support.paths import SCRIPTS


def test_new_runs_do_not_count_as_runs_that_are_no_longer_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS / "dev"))
    script = importlib.import_module("same_output")
    file = tmp_path / "digests.json"
    file.write_text(json.dumps({"search=a": "same", "search=b": "other"}))
    monkeypatch.setattr(script, "runs", lambda: [(f"search={name}",) for name in "abcd"])
    monkeypatch.setattr(script, "output", lambda *_: "same")
    monkeypatch.setattr(sys, "argv", ["same_output.py", str(file), "--compare"])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[4:] == ["1 of 2 runs the same", "  search=b", "  search=c", "  search=d"]


def test_controller_of_a_setup_with_a_template_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS / "dev"))
    script = importlib.import_module("simulate_controller")
    monkeypatch.setattr(sys, "argv", ["simulate_controller.py", "--drafters", "stand,stand_rejection"])
    with pytest.raises(SystemExit, match=r"--drafters must be of stand, .*, got stand_rejection"):
        script.main()
