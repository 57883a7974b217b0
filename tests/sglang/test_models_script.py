"""As a user would: start the servers with one script, solve with the line it prints, and see all of them gone."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_scripts import child_pids, running_members, start_script
from tests.support.sglang_servers import IS_INSTALLED, NOT_INSTALLED, VENV

SOLVE = ("limit=8", "search=beam_search", "search.n=4", "search.sampling.temperature=0.0")
HAS_ROUTER = any(VENV.glob("lib/python*/site-packages/sglang_router"))


@dataclass
class RunningScript:
    """The script, what it printed last, and where the servers' logs are."""

    process: subprocess.Popen[str]
    line: str
    logs: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningScript]:
    """Two targets with our speculation behind a router, and the reward model."""
    if not IS_INSTALLED:
        pytest.skip(NOT_INSTALLED)
    if not HAS_ROUTER:
        pytest.skip(f"sglang-router is not installed in {VENV.name}; tests/sglang/setup.sh does it (make sglang)")
    folder = tmp_path_factory.mktemp("models")
    settings = [
        *(f"serve_models.python={VENV}", "serve_models.packages=cpu_stand_ins"),
        *("serve_models.servers=[target,prm,router]", "target.workers=2", "target.speculation=REASON"),
        *("target.port=0", "prm.port=0", "router.port=0", "hydra.run.dir=logs"),
        "serve_models.restarts=0",
    ]
    process = start_script(folder, "serve_models", *settings)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        while line and not line.startswith("python scripts/solve.py "):
            line = process.stdout.readline()
        assert line, process.communicate()
        yield RunningScript(process, line, folder / "logs")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def solve_trees(folder: Path, *settings: str) -> list[dict[str, Any]]:
    """The trees of a run of scripts/solve.py."""
    process = start_script(folder, "solve", *SOLVE, *settings, "hydra.run.dir=run")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return [json.loads(file.read_text()) for file in sorted((folder / "run" / "trees").glob("*.json"))]


def test_printed_command_gives_the_trees_of_the_local_engine(running: RunningScript, tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    local.mkdir()
    remote.mkdir()
    ours = solve_trees(local, "engine.device=cpu", "engine.kv_mib=256", "speculation=off")
    theirs = solve_trees(remote, *shlex.split(running.line)[2:])
    assert len(ours) == len(theirs) == 8
    for one, other in zip(ours, theirs, strict=True):
        assert (one["question"], one["answer"]) == (other["question"], other["answer"])
        for node, same in zip(one["nodes"], other["nodes"], strict=True):
            assert (node["parent"], node["tokens"]) == (same["parent"], same["tokens"])
            assert node["score"] == pytest.approx(same["score"], abs=1e-4)
    lines = (running.logs / "servers.log").read_text(errors="replace").splitlines()
    for name in ("target-1", "target-2"):
        log = "\n".join(line for line in lines if line.startswith(f"{name} | "))
        assert log.rpartition("fired up")[2].count("POST /generate") > 4, f"the router did not ask {name}"


def test_a_dead_worker_ends_all_servers_and_leaves_no_process(running: RunningScript) -> None:
    leaders = child_pids(running.process.pid)
    assert len(leaders) == 4
    os.killpg(leaders[0], signal.SIGKILL)
    _, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 1
    assert err.startswith("serve_models: target-1 ended with -9; its log (")
    assert not [leader for leader in leaders if running_members(leader)]
