"""As a user would: start the servers with one script, solve with the line it prints, and see all of them gone."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.conftest import BUILT, SKIP
from tests.support.paths import ROOT
from tests.support.sglang_servers import VENV

SOLVE = ("limit=8", "search=beam_search", "search.n=4", "search.sampling.temperature=0.0")
HAS_ROUTER = any(VENV.glob("lib/python*/site-packages/sglang_router"))


@dataclass
class Running:
    """The script, what it printed last, and where the servers' logs are."""

    process: subprocess.Popen[str]
    line: str
    logs: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two targets with our speculation behind a router, and the reward model."""
    if not BUILT:
        pytest.skip(SKIP)
    if not HAS_ROUTER:
        pytest.skip(f"sglang-router is not installed in {VENV.name}; tests/sglang/setup.sh does it (make sglang)")
    folder = tmp_path_factory.mktemp("models")
    settings = [
        *(f"serve_models.python={VENV}", "serve_models.packages=cpu_stand_ins"),
        *("serve_models.servers=[target,prm,router]", "target.workers=2", "target.speculation=REASON"),
        *("target.port=0", "prm.port=0", "router.port=0", "hydra.run.dir=logs"),
    ]
    process = program(folder, "serve_models", *settings)
    try:
        assert process.stdout is not None
        said = ["nothing"]
        while said[-1] and not said[-1].startswith("python scripts/solve.py "):
            said.append(process.stdout.readline())
        assert said[-1], process.communicate()
        yield Running(process, said[-1], folder / "logs")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def program(folder: Path, name: str, *settings: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *settings]
    pipe = subprocess.PIPE
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def solved(folder: Path, *settings: str) -> list[dict[str, Any]]:
    """The trees of a run of scripts/solve.py."""
    process = program(folder, "solve", *SOLVE, *settings, "hydra.run.dir=run")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return [json.loads(file.read_text()) for file in sorted((folder / "run" / "trees").glob("*.json"))]


def test_the_printed_line_gives_the_trees_and_answers_of_the_local_engine(running: Running, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    ours = solved(here, "engine.device=cpu", "engine.kv_mib=256", "speculation=off")
    theirs = solved(there, *shlex.split(running.line)[2:])
    assert len(ours) == len(theirs) == 8
    for one, other in zip(ours, theirs, strict=True):
        assert (one["question"], one["answer"]) == (other["question"], other["answer"])
        for node, same in zip(one["nodes"], other["nodes"], strict=True):
            assert (node["parent"], node["tokens"]) == (same["parent"], same["tokens"])
            assert node["score"] == pytest.approx(same["score"], abs=1e-4)
    for name in ("target-1", "target-2"):
        log = (running.logs / f"{name}.log").read_text(errors="replace")
        assert log.rpartition("fired up")[2].count("POST /generate") > 4, f"the router did not ask {name}"


def test_a_worker_that_dies_ends_all_of_them_and_no_process_is_left(running: Running) -> None:
    leaders = children(running.process.pid)
    assert len(leaders) == 4
    os.killpg(leaders[0], signal.SIGKILL)
    _, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 1
    assert err.startswith("serve_models: target-1 ended with -9; its log (")
    assert not [leader for leader in leaders if members(leader)]


def children(pid: int) -> list[int]:
    """Those it started, oldest first."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def members(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(file.parent.name))
    return found
