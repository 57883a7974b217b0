"""scripts/serve_models.py: what fits into memory, recipes for machines with GPUs, and servers that die or drain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.engines.launcher.memory import MemoryPlan, ModelSize
from reason.engines.launcher.server_command import ServerCommand, find_free_port
from reason.engines.launcher.server_group import ServerExited, ServerGroup
from reason.engines.launcher.spec import LaunchSpec, validate_launch
from tests.support.paths import SCRIPTS

QWEN3_32B = {
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960,
}


def plan(gib: int = 80, *, ranks: int, tokens: int | None = None) -> MemoryPlan:
    size = ModelSize.from_config(QWEN3_32B)
    assert size is not None
    return MemoryPlan(size, ranks, int(gib * 2**30 * 0.88), tokens)


def write_thinker(folder: Path) -> Path:
    """Writes a checkpoint with the shape of a 32 B model and no weights."""
    (folder / "thinker").mkdir()
    (folder / "thinker" / "config.json").write_text(json.dumps(QWEN3_32B))
    return folder / "thinker"


def dry_run(*settings: str) -> LaunchSpec:
    return validate_launch(compose_settings(["serve_models.dry_run=true", *settings], "serve_models")[0])


def test_pool_is_what_weights_leave_divided_by_the_kv_of_a_token() -> None:
    two, four = plan(ranks=2), plan(ranks=4)
    assert two.weights_per_rank == pytest.approx(32.8e9, rel=0.01)
    assert two.kv_per_rank == 2 * 64 * 8 * 128 * 2 // 2
    assert two.pool == (two.available - two.weights_per_rank) // two.kv_per_rank
    assert four.pool > 2 * two.pool  # less of each GPU is weights
    assert plan(ranks=16).kv_per_rank == plan(ranks=8).kv_per_rank  # eight heads: more ranks hold copies
    assert plan(ranks=2, tokens=5000).pool == 5000


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    plan(ranks=1, gib=141).require_fit("target")
    with pytest.raises(ValueError, match=r"65\.\d GB of weights on each GPU do not fit into 45\.\d GB; target\.tp=2"):
        plan(ranks=1, gib=48).require_fit("target")
    two = plan(ranks=2)
    plan(ranks=2, tokens=two.pool).require_fit("target")
    with pytest.raises(ValueError, match=rf"{two.pool + 1:,} tokens of 131\.1 kB .* {two.pool:,} tokens fit"):
        plan(ranks=2, tokens=two.pool + 1).require_fit("target")


def test_unknown_shapes_have_no_size_and_experts_all_count() -> None:
    assert ModelSize.from_config({}) is None
    experts = {**QWEN3_32B, "num_experts": 8, "moe_intermediate_size": 25600}
    dense, sparse = ModelSize.from_config(QWEN3_32B), ModelSize.from_config(experts)
    assert dense is not None
    assert sparse is not None
    assert 6 < sparse.weights / dense.weights < 8
    nested = ModelSize.from_config({"text_config": QWEN3_32B})
    assert nested == dense


def test_launch_refuses_a_model_that_cannot_fit_before_anything_else(tmp_path: Path) -> None:
    model = f"target.path={write_thinker(tmp_path)}"
    with pytest.raises(ConfigError, match=r"^target\.gpus: 65\.\d GB of weights"):
        dry_run(model, "target.gpus=[0]", "serve_models.gpu_gib=40")
    with pytest.raises(ConfigError, match=r"^target\.tokens: 900,000 tokens"):
        dry_run(model, "target.gpus=[0,1]", "target.tp=2", "target.tokens=900000", "serve_models.gpu_gib=80")
    fits = dry_run(model, "target.gpus=[0,1]", "target.tp=2", "target.speculation=REASON", "serve_models.gpu_gib=80")
    (line,) = fits.memory
    assert "a pool of " in line
    command = fits.commands["target"].command
    assert command[command.index("--tp-size") + 1] == "2"
    assert command[command.index("--speculative-algorithm") + 1] == "REASON"


def test_a_draft_model_and_a_table_reach_the_command_and_the_sums(tmp_path: Path) -> None:
    gpus = ("target.gpus=[0,1]", "target.tp=2", "serve_models.gpu_gib=80")
    target = (f"target.path={write_thinker(tmp_path)}", *gpus, "target.speculation=REASON")
    alone = dry_run(*target)
    drafting = ("target.draft=standalone", "target.draft_path=bundled:draft", "target.table=tables")
    spec = dry_run(*target, *drafting)
    command = spec.commands["target"].command
    values = {flag: command[command.index(flag) + 1] for flag in command if flag.startswith(("--reason", "--spec"))}
    assert Path(values.pop("--speculative-draft-model-path")).name == "draft"
    assert values == {
        "--speculative-algorithm": "REASON",
        "--reason-draft": "standalone",
        "--reason-table": str(Path("tables").absolute()),
    }
    pools = [int(one.memory[0].split("a pool of ")[1].split(" ")[0].replace(",", "")) for one in (alone, spec)]
    assert pools[1] < pools[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["target.table=tables"], r"^target\.table.*needs speculation=REASON"),
        (["target.draft=eagle", "target.draft_path=bundled:draft"], r"^target\.draft.*needs speculation=REASON"),
        (["target.speculation=REASON", "target.draft=medusa"], r"^target\.draft.*standalone, eagle, eagle3"),
        (["target.speculation=REASON", "target.draft=eagle"], r"^target\.draft_path"),
        (["target.speculation=REASON", "target.draft=eagle", "target.draft_path=nowhere"], r"target\.draft_path"),
    ],
)
def test_a_draft_model_that_cannot_be_used_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dry_run(*settings)


@pytest.mark.parametrize("recipe", sorted(file.stem for file in Path(str(files("conf") / "recipe")).glob("*.yaml")))
def test_every_recipe_composes_and_fits_by_dry_run(tmp_path: Path, recipe: str) -> None:
    thinker = write_thinker(tmp_path)
    nodes = ["serve_models.nodes=[node1,node2]"] if recipe.startswith("nodes") else []
    # shapes of this machine in place of hub ids, which need a network
    local = [f"target.path={thinker}", "small.path=bundled:draft", "small.vocabulary=own", "prm.format=prm"]
    spec = dry_run(f"+recipe={recipe}", *local, *nodes)
    gpus = [command.environment["CUDA_VISIBLE_DEVICES"] for command in spec.commands.values()]
    assert sorted(",".join(gpus).split(",")) == [str(i) for i in range(8)]
    assert list(spec.commands) == ["target-1", "target-2", "target-3", "small", "prm"]
    urls = next(setting for setting in spec.solve_settings if setting.startswith("engine.urls="))
    assert "router=entropy" in spec.solve_settings  # the other routers need training for a pair
    assert urls.count("http://") == 3 * max(1, 2 * len(nodes))
    assert all(f"http://{node}:30002" in urls for node in ("node1", "node2") if nodes)


def test_dry_run_prints_the_sums_and_commands_and_starts_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "serve_models.py"), "serve_models.dry_run=true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("memory of target: weights 0.01 GB, KV ")
    assert "sglang.launch_server" in lines[1]
    assert lines[-1].endswith("engine=sglang 'engine.urls=[http://127.0.0.1:30000]'")


SERVER = """
import http.server, os, signal, sys, threading, time
folder, port = sys.argv[1], int(sys.argv[2])

def say(line):
    # in one write: `print` writes the end of the line by itself, and another thread may come between
    os.write(1, f"{line}\\n".encode())

def drain(*_):
    say("draining")
    def leave():
        while not os.path.exists(folder + "/served"):
            time.sleep(0.05)
        say("drained")
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=leave).start()

signal.signal(signal.SIGTERM, drain)
say("a start")
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", port), lambda *a: Handler(*a, directory=folder)).serve_forever()
"""


def open_group(folder: Path, lines: list[str], should_stop: Callable[[], bool], **more: Any) -> ServerGroup:
    (folder / "health").write_text("well")
    (folder / "server.py").write_text(SERVER)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/server.py {folder} "$8"\n')
    python.chmod(0o755)
    command = ServerCommand(python=python, model=str(folder), port=find_free_port())
    settings = {"timeout_s": 60, "restarts": 1} | more
    return ServerGroup({"target": command}, folder, should_stop=should_stop, report=lines.append, **settings)


def kill_server(folder: Path) -> None:
    """Kills the server of this folder, found by its own argument."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{folder}/server.py".encode() in arguments:
            os.kill(int(process.name), signal.SIGKILL)


def test_dead_server_is_started_again_once(tmp_path: Path) -> None:
    lines: list[str] = []
    up_again = lambda: sum(" is up at " in line for line in lines) == 2  # noqa: E731
    with open_group(tmp_path, lines, should_stop=up_again) as group:
        assert group.start_all()
        kill_server(tmp_path)
        group.wait_until_stopped()
        assert "target ended with -9 and is started again (0 restarts left)" in lines
        assert group.log.read_text().count("target | a start\n") == 2
        kill_server(tmp_path)
        lines.clear()
        with pytest.raises(ServerExited, match=r"target ended with -9; its log .*\na start\na start"):
            group.wait_until_stopped()
        (tmp_path / "served").touch()


def test_drain_waits_for_running_requests_up_to_its_limit(tmp_path: Path) -> None:
    lines: list[str] = []
    with open_group(tmp_path, lines, should_stop=lambda: False) as group:
        assert group.start_all()
        group.drain_all(0.5, should_hurry=lambda: False)
        assert "drained" not in group.log.read_text()
        group.drain_all(60, should_hurry=lambda: True)  # a second signal
        (tmp_path / "served").touch()
        group.drain_all(60, should_hurry=lambda: False)
    assert "target | drained\n" in group.log.read_text()
