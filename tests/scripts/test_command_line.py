"""Command lines that went wrong with a traceback or without a hint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from tests.support.paths import ROOT


def run(script: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["n=8"], "there is no setting n (did you mean search.n?); this program has: "),
        (["temperature=0.5"], "did you mean search.sampling.temperature or model.sampling.temperature?"),
        (["search=beam"], "there is no search=beam (did you mean beam_search?)"),
        (["search=null"], "there is no search=null; choose one of: "),
        (["engine@small=null"], "there is no engine@small=null; choose one of: function, "),
        (["scorer="], "there is no scorer=; choose one of: "),
        (["preset=beam-16"], "preset is added with +preset=NAME; choose one of: beam-16, "),
        (["What is 3 + 4?"], 'a question is question="..." in quotes'),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_settings_are_refused_with_a_hint(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_settings(overrides)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_effort_null_is_as_if_it_were_not_set(tmp_path: Path) -> None:
    assert compose_settings(["effort=null"]) == compose_settings([])
    done = run("solve.py", "effort=null", "search.n=0", f"hydra.run.dir={tmp_path}/run", folder=tmp_path)
    assert (done.returncode, done.stderr) == (2, "solve: search.n must be an int >= 1, got 0\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
@pytest.mark.parametrize("device", ["engine.device=cuda", "scorer.device=cuda:1", "engine.device=gpu"])
def test_device_that_is_not_there_is_refused_before_models_load(device: str, tmp_path: Path) -> None:
    done = run("solve.py", device, "question=1", f"hydra.run.dir={tmp_path}/run", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"solve: {device.partition('=')[0]} ")
    assert len(done.stderr.splitlines()) == 1


def test_help_whose_reader_has_gone_is_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "solve.py"), "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(120) == 141


def test_benchmarks_have_help_and_name_a_file_that_is_not_there(tmp_path: Path) -> None:
    helped = run("bench/calibrate.py", "--help", folder=tmp_path)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "embedder.path=FOLDER" in helped.stdout
    missing = run("bench/replay.py", "nofile", folder=tmp_path)
    assert missing.returncode == 1
    assert missing.stderr == "nofile: No such file or directory\n"
