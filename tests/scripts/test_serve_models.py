"""scripts/serve_models.py: refusals before anything starts, the printed command line, a clean end in every case.

The Python that has SGLang is a shell script here, and its servers are Python's http.server.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.engines.launcher.spec import LaunchSpec, validate_launch
from tests.support.paths import SCRIPTS

SERVER = """
import sys, time
from http.server import HTTPServer, SimpleHTTPRequestHandler

class Handler(SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/health":
            time.sleep(1.1)  # as SGLang's, which generates a token and looks a second later whether it has come
        super().do_GET()

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SCRIPT = SCRIPTS / "serve_models.py"
EVERYTHING = '{"sglang": "0", "sglang-router": "0", "reason-search": "0", "sgl_kernel": "there"}'


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return write_python(tmp_path, EVERYTHING)


def write_python(folder: Path, has: str) -> Path:
    """A Python with these packages, in which the server of a model in `.../prm` prints a word and ends."""
    (folder / "health").write_text("well")
    (folder / "readiness").write_text("well")
    (folder / "server.py").write_text(SERVER)
    python = folder / "python"
    python.write_text(
        "#!/bin/sh\n"
        f"if [ $1 = -c ]; then echo '{has}'; exit; fi\n"
        "case $4 in */prm) echo no such model; exit 3;; esac\n"
        "while [ $# -gt 0 ]; do case $1 in --port) port=$2;; esac; shift; done\n"
        f'cd {folder} && exec {sys.executable} server.py "$port"\n'
    )
    python.chmod(0o755)
    return python


def start(folder: Path, python: Path, *settings: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), f"serve_models.python={python}", *settings]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def launch_spec(python: Path, *settings: str) -> LaunchSpec:
    return validate_launch(compose_settings([f"serve_models.python={python}", *settings], "serve_models")[0])


FREE = ("target.port=0", "small.port=0", "prm.port=0", "router.port=0")


def test_servers_start_print_the_solve_command_and_stop_at_a_signal(tmp_path: Path, python: Path) -> None:
    selection = "serve_models.servers=[target,small,router]"
    process = start(tmp_path, python, selection, "target.workers=2", "hydra.run.dir=logs", *FREE)
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not lines[-1].startswith("Ctrl-C"):
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()
    assert [line.split(":")[0] for line in lines[:2]] == ["memory of target", "memory of small"]
    assert lines[2].startswith("starting target-1, target-2, small, router; logs in ")
    assert {line.split()[0] for line in lines if " is up at http://127.0.0.1:" in line} == {
        "target-1",
        "target-2",
        "small",
        "router",
    }
    settings = shlex.split(lines[-2])[2:]
    config, choices = compose_settings(settings)
    assert choices["engine"] == choices["engine@small"] == "sglang"
    assert len(config["engine"]["urls"]) == len(config["small"]["urls"]) == 1
    ports = [int(line.split()[4].rpartition(":")[2]) for line in lines if " is up at " in line]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "stopping\nstopped\n", "")
    for port in ports:
        with socket.create_server(("127.0.0.1", port), reuse_port=False):
            pass
    (log,) = (tmp_path / "logs").glob("*.log")
    labels = {line.split(" | ")[0] for line in log.read_text().splitlines()}
    assert labels == {"target-1", "target-2", "small", "router"}  # a line for each request to /health


def test_exited_server_stops_the_others_and_shows_its_log(tmp_path: Path, python: Path) -> None:
    process = start(tmp_path, python, "serve_models.servers=[target,prm]", *FREE)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.startswith("serve_models: prm ended with 3; its log (")
    assert err.endswith("ends:\nno such model\n\n")
    assert out.endswith("stopped\n")


def test_wrong_setting_is_one_sentence_and_exit_code_2(tmp_path: Path, python: Path) -> None:
    process = start(tmp_path, python, "serve_models.servers=[targte]")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("serve_models: serve_models.servers: there is no server 'targte' (did you mean target?)")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["serve_models.servers=[router]"], "serve_models.servers: router is in front of target; add target"),
        (["serve_models.servers=[target,target]"], "serve_models.servers must differ"),
        (["serve_models.packages=nowhere"], "serve_models.packages=nowhere: there is no such folder"),
        (["serve_models.startup_timeout_s=0"], "serve_models.startup_timeout_s must be an int >= 1, got 0"),
        (["target.workers=two"], "target.workers must be an int >= 1, got 'two'"),
        (["target.gpus=[0,1]"], "target.gpus must be 1 for 1 worker(s) of tp=1, got [0, 1]"),
        (["target.gpus=[0,0]", "target.tp=2"], "target.gpus must differ"),
        (["target.tp=2"], "target.tp=2 needs gpus"),
        (["serve_models.drain_timeout_s=-1"], "serve_models.drain_timeout_s must be an int >= 0"),
        (["serve_models.restarts=no"], "serve_models.restarts must be an int >= 0"),
        (["serve_models.gpu_gib=0"], "serve_models.gpu_gib must be a number > 0"),
        (["serve_models.nodes=here"], "serve_models.nodes must be a list of addresses"),
        (["serve_models.nodes=[a]", "target.port=0"], "target.port=0 is another port on each of serve_models.nodes"),
        (["target.port=70000"], "target.port must be an int from 0 to 65535"),
        (["target.flags=[[1]]"], "target.flags must be a list"),
        (["target.path=/no/such"], "target.path=/no/such: there is no such folder"),
        (["target.model=no_such_model"], "there is no model=no_such_model"),
        (["prm.format=likelihood"], "prm.format must be a reward model"),
        (["small.port=30200"], "prm.port=30200: small has port 30200"),
        (["target.gpus=[0]", "prm.gpus=[0]"], "prm.gpus and target.gpus both have GPU 0"),
    ],
)
def test_validation_names_the_setting(python: Path, wrong: list[str], message: str) -> None:
    settings = wrong if "servers=" in wrong[0] else ["serve_models.servers=[target,small,prm]", *wrong]
    with pytest.raises(ConfigError) as caught:
        launch_spec(python, *settings)
    assert str(caught.value).startswith(message)


def test_port_in_use_is_named(python: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^target\.port: nothing can listen at 127\.0\.0\.1:{port} \("):
            launch_spec(python, f"target.port={port}")


@pytest.mark.parametrize(
    ("has", "settings", "message"),
    [
        ("{}", (), "has no sglang; give the Python"),
        ('{"sglang": "0"}', (), "has no sgl_kernel; on a CPU"),
        ('{"sglang": "0"}', ("target.gpus=[0]", "target.speculation=REASON"), "has no reason-search; install"),
        ('{"sglang": "0"}', ("target.gpus=[0]", "serve_models.servers=[target,router]"), "has no sglang-router; "),
        ("no json", (), "is not a Python that runs"),
    ],
)
def test_missing_package_is_named(tmp_path: Path, has: str, settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^serve_models\.python") as caught:
        launch_spec(write_python(tmp_path, has), *settings, *FREE)
    assert message in str(caught.value)


def test_gpus_are_assigned_and_shared_only_with_memory_limits(python: Path) -> None:
    share = "[--mem-fraction-static,0.4]"
    both = ("target.gpus=[2,3,4,5]", "target.workers=2", "target.tp=2", "prm.gpus=[5]")
    spec = launch_spec(
        python, "serve_models.servers=[target,prm]", *both, *FREE, f"target.flags={share}", f"prm.flags={share}"
    )
    gpus = {name: command.environment["CUDA_VISIBLE_DEVICES"] for name, command in spec.commands.items()}
    assert gpus == {"target-1": "2,3", "target-2": "4,5", "prm": "5"}
    assert spec.commands["target-2"].command[-4:] == ["--tp-size", "2", "--mem-fraction-static", "0.4"]


def test_commands_have_the_flags_that_our_client_relies_on(python: Path) -> None:
    spec = launch_spec(python, "serve_models.servers=[target,prm]", "target.speculation=REASON", *FREE)
    target, prm = spec.commands.values()
    assert target.command[-4:] == ["--max-total-tokens", "16384", "--speculative-algorithm", "REASON"]
    assert target.environment["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "1"
    assert target.environment["PYTHONPATH"].split(os.pathsep) == os.environ.get("PYTHONPATH", "").split(os.pathsep)
    assert prm.url in spec.solve_settings[-1]
    assert spec.solve_settings[2:4] == ("scorer=sglang_prm", "scorer.format=prm")
