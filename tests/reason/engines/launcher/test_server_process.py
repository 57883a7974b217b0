"""The command and environment of a server, and its process; the servers here are Python's http.server."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx2
import pytest

from reason.engines.launcher.server_command import ServerCommand, find_free_port
from reason.engines.launcher.server_process import ServerProcess


def launch(folder: Path, body: str) -> ServerCommand:
    """Returns the command of a server whose Python runs `body` with `-m sglang.launch_server --model-path ...`."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    return ServerCommand(python=python, model=str(folder), port=find_free_port())


def serving(folder: Path) -> ServerProcess:
    (folder / "health").write_text("well")
    body = f'exec {sys.executable} -m http.server "$8" --bind "$6" --directory "$4"'
    return ServerProcess(launch(folder, body), folder / "log")


def test_server_command_without_gpus_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "mine")
    command = ServerCommand(python=Path("py"), model="m", port=7, flags=("--tp", "2"), packages=Path("theirs"))
    assert command.command[:9] == [
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
    assert command.command[-2:] == ["--tp", "2"]
    assert command.command[command.command.index("--device") + 1] == "cpu"
    assert command.environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert command.environment["PYTHONPATH"] == "theirs:mine"


def test_server_command_with_gpus_has_no_cpu_flags() -> None:
    command = ServerCommand(python=Path("py"), model="m", port=7, gpus=(2, 3))
    assert command.command[-3:] == ["--port", "7", "--incremental-streaming-output"]
    assert command.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "SGLANG_USE_CPU_ENGINE" not in command.environment


def test_server_process_is_healthy_then_stopped_even_while_paused(tmp_path: Path) -> None:
    server = serving(tmp_path)
    server.start()
    try:
        server.wait_until_healthy(60)
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


def test_server_process_whose_port_was_taken_is_reported_at_once_and_may_start_again(tmp_path: Path) -> None:
    message = "error while attempting to bind on address ('127.0.0.1', 7): address already in use"
    script = f'if mkdir "$4/started" 2>&-; then echo "{message}"; exec sleep 600; fi; echo fine; exit 3'
    server = ServerProcess(launch(tmp_path, script), tmp_path / "log")
    server.start()
    with pytest.raises(RuntimeError, match="has no port: another program has taken it; its log ends:"):
        server.wait_until_healthy(60)
    server.kill()
    server.start()
    with pytest.raises(RuntimeError, match=r"(?s)ended with 3; its log ends:.*in use\nfine"):
        server.wait_until_healthy(60)
    server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="reads which ports Linux gives to connections")
def test_free_port_is_none_that_the_system_gives_to_connections() -> None:
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {find_free_port() for _ in range(20)}
    assert len(ports) > 10
    assert max(ports) < given_from


def test_exited_server_process_is_reported_with_its_log(tmp_path: Path) -> None:
    server = ServerProcess(launch(tmp_path, "echo no such model; exit 3"), tmp_path / "log")
    server.start()
    with pytest.raises(RuntimeError, match=r"ended with 3; its log ends:\nno such model"):
        server.wait_until_healthy(60)
    server.stop()
