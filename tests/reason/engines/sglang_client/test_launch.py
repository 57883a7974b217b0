"""A server's command and environment, and its life; what is started here is a web server of Python's own."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx2
import pytest

from reason.engines.launcher.server_command import Launch, free_port
from reason.engines.launcher.server_process import ServerProcess


def launch(folder: Path, body: str) -> Launch:
    """A server whose Python is a script of ours; its arguments are `-m sglang.launch_server --model-path ...`."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    return Launch(python=python, model=str(folder), port=free_port())


def serving(folder: Path) -> ServerProcess:
    (folder / "health").write_text("well")
    body = f'exec {sys.executable} -m http.server "$8" --bind "$6" --directory "$4"'
    return ServerProcess(launch(folder, body), folder / "log")


def test_without_gpus_it_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "mine")
    made = Launch(python=Path("py"), model="m", port=7, flags=("--tp", "2"), packages=Path("theirs"))
    assert made.command[:9] == [
        "py",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "m",
        "--host",
        "127.0.0.1",
        "--port",
        "7",
    ]
    assert made.command[-2:] == ["--tp", "2"]
    assert made.command[made.command.index("--device") + 1] == "cpu"
    assert made.environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert made.environment["PYTHONPATH"] == "theirs:mine"


def test_with_gpus_it_sees_those_and_no_flag_of_the_cpu() -> None:
    made = Launch(python=Path("py"), model="m", port=7, gpus=(2, 3))
    assert made.command[-2:] == ["--port", "7"]
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "SGLANG_USE_CPU_ENGINE" not in made.environment


def test_it_is_up_when_it_answers_and_gone_when_it_is_stopped_even_if_paused(tmp_path: Path) -> None:
    server = serving(tmp_path)
    server.start()
    try:
        server.wait(60)
        server.pause()
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.get(f"{server.launch.url}/health", timeout=0.5)
        server.resume()
        assert httpx2.get(f"{server.launch.url}/health", timeout=60).text == "well"
        server.pause()
    finally:
        server.stop()
        server.stop()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.launch.url}/health", timeout=10)


def test_one_that_ends_by_itself_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    server = ServerProcess(launch(tmp_path, "echo no such model; exit 3"), tmp_path / "log")
    server.start()
    with pytest.raises(RuntimeError, match=r"ended with 3; its log ends:\nno such model"):
        server.wait(60)
    server.stop()
