"""Every experiment on a paper from outside: random checkpoints, two problems, and never a reproduction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reason.commands.report import write_report
from tests.support.paths import SCRIPTS
from tests.support.tiny_papers import Checkpoints, save_checkpoints

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
SMALL = ["limit=2", "search.sampling.max_tokens=40"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return save_checkpoints(tmp_path_factory.mktemp("checkpoints"))


def solve(folder: Path, *arguments: str) -> tuple[str, list[dict[str, Any]]]:
    """Runs a sweep; returns what it printed, and the summaries of its runs."""
    command = [sys.executable, str(SCRIPTS / "solve.py"), *arguments, "hydra.sweep.dir=sweep"]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    files = sorted((folder / "sweep").glob("*/summary.json"))
    return done.stdout, [json.loads(file.read_text()) for file in files]


def scorer_of(tiny: Checkpoints, name: str) -> str:
    return f"scorer.path={tiny.rewards[name]}"


def test_ets_and_rebase_run_and_the_report_divides_their_kv(tiny: Checkpoints, tmp_path: Path) -> None:
    out, summaries = solve(
        tmp_path, "+experiment=paper_ets", *SMALL, "search.n=4", "embedder=words", "speculation=off",
        f"model.path={tiny.writer}", scorer_of(tiny, "rlhflow_prm"), f"task.path={tiny.problems['math500']}",
    )  # fmt: skip
    assert [summary["search"] for summary in summaries] == ["rebase", "ets_published"]
    judged = summaries[1]["paper"]
    assert not judged["is_reproduction"]
    named = " ".join(judged["differences"])
    for difference in (
        f"model.path is {tiny.writer} and not meta-llama/Llama-3.2-1B-Instruct or",
        "search.n is 4 and not 16 or 64 or 256",
        "embedder is words and not zbmath",
        f"scorer.path is {tiny.rewards['rlhflow_prm']} and not RLHFlow/Llama3.1-8B-PRM-Deepseek-Data",
        "task.path is",
        "search.sampling.max_tokens is 40 and not 1024",
        "2 of 500 problems",
    ):
        assert difference in named
    assert out.count("not a reproduction: ") == 2
    assert "the published settings" not in out
    write_report([tmp_path / "sweep"], tmp_path / "report.html")
    line = next(line for line in (tmp_path / "report.md").read_text().splitlines() if "kv_ratio of search=ets" in line)
    assert "published 1.8 (abstract, without a width, arXiv 2502.13575); here, over search=rebase, " in line
    assert "; not a reproduction: search.n is 4 and not 16 or 64 or 256; " in line
    page = (tmp_path / "sweep" / "1" / "index.html").read_text()
    assert "not a reproduction: " in page
    assert "2502.13575" in page


@pytest.mark.parametrize(
    ("paper", "scorer", "more"),
    [
        ("rebase", "qwen_prm", ["search.n=4"]),
        ("dora", "qwen_prm", ["search.n=4", "search=dvts"]),
        ("search_and_learn", "rlhflow_prm", ["search.n=4"]),
        ("arbitrage", "skywork_prm", ["small.path={writer}"]),
    ],
)
def test_experiment_with_a_reward_model_runs(
    tiny: Checkpoints, tmp_path: Path, paper: str, scorer: str, more: list[str]
) -> None:
    settings = [setting.format(writer=tiny.writer) for setting in more]
    out, summaries = solve(
        tmp_path, f"+experiment=paper_{paper}", *SMALL, *settings, "speculation=off",
        f"model.path={tiny.writer}", scorer_of(tiny, scorer), f"task.path={tiny.problems['math500']}",
    )  # fmt: skip
    for summary in summaries:
        assert summary["problems"] == 2
        assert summary["errors"] == 0
        assert summary["usage"]["scorer_calls"] > 0
        assert "2 of 500 problems" in summary["paper"]["differences"]
    assert out.count("not a reproduction: ") == len(summaries) > 0


def test_stand_prints_its_published_length_beside_ours(tiny: Checkpoints, tmp_path: Path) -> None:
    file = tiny.problems["gpqa"]
    out, (summary,) = solve(
        tmp_path, "+experiment=paper_stand", *SMALL, "task=gpqa", "search.n=4",
        f"model.path={tiny.writer}", f"task.path={file}",
    )  # fmt: skip
    length, speed = summary["paper"]["figures"]
    assert (length["published"], speed["published"]) == (3.48, 2.66)
    assert length["low"] <= length["ours"] <= length["high"]
    assert length["ours"] == pytest.approx(summary["engine_totals"]["accepted_length"], abs=0.01)
    assert "tokens per forward: published 3.48 (table of v1, 7B, GPQA, 4 trajectories); here " in out
    assert "2 of 198 problems" in out


def test_pdr_is_never_a_reproduction(tiny: Checkpoints, tmp_path: Path) -> None:
    small = ["search.n=2", "search.workspace_tokens=30", "search.draft_tokens=30"]
    out, (summary,) = solve(
        tmp_path, "+experiment=paper_pdr", *SMALL, *small,
        f"model.path={tiny.writer}", f"task.path={tiny.problems['aime']}",
    )  # fmt: skip
    assert summary["errors"] == 0
    assert "not a reproduction: the models of the paper are served ones" in out
