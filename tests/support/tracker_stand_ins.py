"""Packages `wandb` and `mlflow` that write every call to a file, for programs that log to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WANDB = """
import json, os

class Error(Exception): pass

def note(*call):
    with open(os.environ["TRACKED"], "a") as file:
        file.write(json.dumps(["wandb", *call]) + "\\n")

class Summary:
    def update(self, numbers): note("summary", numbers)

class Run:
    summary = Summary()
    def log(self, numbers, step):
        note("log", numbers, step)
        if os.environ.get("BROKEN_TRACKER"): raise Error("the server is gone")
    def finish(self): note("finish")

def init(*, name, dir, config):
    if os.environ.get("NO_LOGIN"): raise Error("not logged in")
    note("init", name, config)
    return Run()
"""

MLFLOW = """
import json, os, re

class exceptions:
    class MlflowException(Exception): pass

def note(*call):
    with open(os.environ["TRACKED"], "a") as file:
        file.write(json.dumps(["mlflow", *call]) + "\\n")

def check(names):
    for name in names:
        if not re.fullmatch(r"[\\w\\-. /]+", name): raise exceptions.MlflowException("invalid name " + name)

def start_run(*, run_name): note("start_run", run_name)

def log_params(params):
    check(params)
    if len(params) > 100: raise exceptions.MlflowException("too many parameters")
    note("log_params", params)

def log_metrics(metrics, step=None):
    check(metrics)
    note("log_metrics", metrics, step)

def end_run(): note("end_run")
"""


def write_stand_ins(folder: Path) -> Path:
    """Writes both packages into a folder for PYTHONPATH, and returns it."""
    folder.mkdir()
    (folder / "wandb.py").write_text(WANDB)
    (folder / "mlflow.py").write_text(MLFLOW)
    return folder


def read_calls(file: Path, package: str) -> list[list[Any]]:
    """Returns the calls that a package got: the function and its arguments."""
    calls = [json.loads(line) for line in file.read_text().splitlines()]
    return [call[1:] for call in calls if call[0] == package]
