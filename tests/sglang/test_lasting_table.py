"""`--reason-table`: a server begins with what others have learned, and leaves what it learns, as local runs do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from decoding.core import GenerationRequest, SamplingParams, Usage
from tests.support.sglang_servers import IS_INSTALLED, NOT_INSTALLED, RealServer
from tests.support.sglang_solvers import QUESTIONS, load_local, load_remote, sglang_engine

FLAGS = ("--speculative-algorithm", "REASON", "--speculative-num-draft-tokens", "8", "--reason-controller", "fixed")
SETTINGS = ("scorer=none", "search=self_consistency")
PATIENCE_S = 60.0
SETTLED_S = 6.0  # an idle server saves what it has learned within five seconds

pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason=NOT_INSTALLED)


@contextmanager
def serving(log: Path, *flags: str) -> Iterator[RealServer]:
    server = RealServer(log, *FLAGS, *flags)
    try:
        yield server.wait()
    finally:
        server.kill()


def tokens_per_forward(server: RealServer, first_seed: int) -> float:
    """Samples of the same problems; other seeds give other texts."""
    params = SamplingParams(max_tokens=100)
    with load_remote([server], *SETTINGS) as solver:
        requests = [
            GenerationRequest(prefix=solver.prompt.encode(question), params=params, seed=first_seed + i, group=question)
            for question in QUESTIONS
            for i in range(4)
        ]
        generations = asyncio.run(sglang_engine(solver).generate(requests))
    usage = sum((generation.usage for generation in generations), Usage())
    return usage.tokens / usage.forwards


def wait_for_table(folder: Path, after: float) -> Path:
    """Returns the only table that was written after this time, once it is not written again for a while."""
    until = time.monotonic() + PATIENCE_S
    while True:
        files = [file for file in folder.glob("*.safetensors") if file.stat().st_mtime > after]
        if files and time.time() - files[0].stat().st_mtime > SETTLED_S:
            (file,) = files
            return file
        assert time.monotonic() < until, "no table was left"
        time.sleep(0.1)


def test_a_second_server_drafts_better_and_a_broken_table_ends_a_third_one(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    with serving(tmp_path / "first.log", "--reason-table", str(folder)) as server:
        begin = time.time()
        first = tokens_per_forward(server, 0)
        file = wait_for_table(folder, begin)  # it is left while the server runs: a kill tells it nothing
    # A run in this process takes the same table: the weights have the same digest. It learns nothing and leaves none.
    with load_local(*SETTINGS, "speculation=stand", f"speculation.remember={folder}"):
        assert list(folder.glob("*.safetensors")) == [file]
    local = ("speculation=stand", "controller=fixed", "controller.nodes=4", f"speculation.remember={folder}")
    with load_local(*SETTINGS, *local) as solver:
        solver.solve(QUESTIONS[0])  # leaves one of its own
    before = set(folder.glob("*.safetensors"))
    assert len(before) == 2
    with serving(tmp_path / "second.log", "--reason-table", str(folder)) as server:
        # beside that one there may be what it has learned from SGLang's own first request
        assert before.isdisjoint(folder.glob("*.safetensors")), "the second server makes one of both"
        begin = time.time()
        second = tokens_per_forward(server, 100)
        print(f"tokens per forward pass: {first:.2f} with an empty table, {second:.2f} with another server's")  # -rP
        assert second > 1.15 * first
        file = wait_for_table(folder, begin)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with (
        pytest.raises(RuntimeError, match="ended with"),
        serving(tmp_path / "third.log", "--reason-table", str(folder)),
    ):
        pass
    assert "ValueError: --reason-table: " in (log := (tmp_path / "third.log").read_text(errors="replace"))
    assert "is broken: its contents do not match their digest; remove the file" in log
    assert file.read_bytes() != data


def test_a_wrong_flag_ends_the_command(tmp_path: Path) -> None:
    server = RealServer(tmp_path / "log", *FLAGS[:-1], "never")
    try:
        with pytest.raises(RuntimeError, match=r"--reason-controller must be .*adaptive.*fixed.*never"):
            server.wait()
    finally:
        server.kill()
