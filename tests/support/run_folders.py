"""Folders of runs as `reason solve` leaves them, with rows made up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from decoding.core import Usage
from reason.runs import resume
from search.kv import KVFootprint


def make_row(problem: int, right: bool, tokens: int) -> dict[str, Any]:
    return {
        "id": f"p/{problem}", "gold": "1", "grade": "right" if right else "wrong", "error": None,
        "usage": asdict(Usage(tokens=tokens, forwards=tokens // 2, seconds=0.5)),
        "kv": asdict(KVFootprint(kept_tokens=90.0)),
    }  # fmt: skip


def make_run(home: Path, n: int, rights: list[bool], *, stopped: str | None = "done", search: str = "rebase") -> Path:
    """Writes the folder of a run as scripts/solve.py does."""
    home.mkdir(parents=True)
    config, about = {"search": {"n": n}, "seed": 0}, {"task": "synthetic", "model": "bundled"}
    resume.save_settings(home, config=config, choices={"search": search}, about=about)
    lines = [json.dumps(make_row(i, right, 100 * n)) for i, right in enumerate(rights)]
    (home / "results.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if stopped:
        (home / "summary.json").write_text(json.dumps({"stopped": stopped}))
        (home / "index.html").write_text("<p>the run</p>")
    return home
