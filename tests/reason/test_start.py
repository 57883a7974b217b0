"""What a start imports: neither a refused setting nor `--help` waits for what only models need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

HEAVY = {"torch", "transformers", "scipy.optimize", "networkx", "sympy", "math_verify", "matplotlib", "datasets"}
MODEL_CLASSES = {"transformers.modeling_utils", "torch.distributed.tensor", "sympy", "scipy.optimize", "matplotlib"}
"""What the bundled models need none of: model classes, compilers, and what plots or grades."""


def imported_by(arguments: list[str], folder: Path) -> set[str]:
    """The modules that a command imports, by Python's own report."""
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, cwd=folder, check=False
    )
    lines = (line for line in result.stderr.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


def loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_help_of_settings_is_read_without_hydra(tmp_path: Path) -> None:
    imported = imported_by([str(ROOT / "scripts" / "solve.py"), "search=ets", "--help"], tmp_path)
    assert "reason.commands.settings_help" in imported
    assert not imported & (HEAVY | {"hydra", "omegaconf", "numpy", "rich"})


@pytest.mark.parametrize("argument", ["search=beam", "search.n=0", "controller.max_draft_tokens=-1", "n=8"])
def test_refused_settings_import_nothing_heavy(argument: str, tmp_path: Path) -> None:
    imported = imported_by([str(ROOT / "scripts" / "solve.py"), argument, f"hydra.run.dir={tmp_path}/run"], tmp_path)
    assert "hydra" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize("override", ["search=best_of_n", "search=self_consistency", "speculation=suffix"])
def test_valid_settings_are_checked_without_torch(override: str) -> None:
    loaded = loaded_after(
        "from reason.settings.validate import validate_settings\nfrom reason.config.compose import compose_settings\n"
        f"validate_settings(*compose_settings([{override!r}])).names"
    )
    assert not loaded & HEAVY


def test_bundled_models_load_without_the_model_classes_of_transformers() -> None:
    loaded = loaded_after('import reason\nwith reason.load("search.n=2", "engine.keep_costs=false"):\n    pass')
    assert "torch" in loaded
    assert not loaded & MODEL_CLASSES
