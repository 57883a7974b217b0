"""Imports point down, and what is heavy stays out of what is light. Read from the syntax trees."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BELOW = {
    "decoding": {"decoding"},
    "search": {"search", "decoding"},
    "reason": {"reason", "search", "decoding"},
    "scripts": {"reason", "scripts"},
}
HOUSE = {"decoding", "search", "reason", "scripts", "conf", "tests"}


def imports(file: Path) -> Iterator[str]:
    """Every module a file imports, inside functions and for type checking too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(layer: str) -> list[Path]:
    return sorted((ROOT / layer).rglob("*.py"))


@pytest.mark.parametrize("layer", BELOW)
def test_a_layer_imports_itself_and_what_is_below(layer: str) -> None:
    for file in files(layer):
        for module in imports(file):
            top = module.partition(".")[0]
            assert top not in HOUSE or top in BELOW[layer], f"{file.relative_to(ROOT)} imports {module}"


def test_search_knows_of_decoding_only_the_core_and_of_packages_only_numpy_and_networkx() -> None:
    for file in files("search"):
        for module in imports(file):
            top = module.partition(".")[0]
            allowed = top in sys.stdlib_module_names or top in ("search", "numpy")
            allowed |= module == "decoding" or module.startswith(("decoding.core", "decoding.validation"))
            allowed |= top == "networkx" and file.name == "tree.py"
            allowed |= top == "scipy" and file.name in ("clusters.py", "ets_program.py")
            assert allowed, f"{file.relative_to(ROOT)} imports {module}"


def test_the_core_imports_nobody_of_the_house() -> None:
    """Nor does the validation of settings, which the core alone may import."""
    used = {m for m in imports(ROOT / "decoding" / "core.py") if m.partition(".")[0] in HOUSE}
    assert used == {"decoding.validation", "decoding.validation.is_count"}
    assert not {m for m in imports(ROOT / "decoding" / "validation.py") if m.partition(".")[0] in HOUSE}


def test_only_the_plugin_knows_sglang() -> None:
    for layer in BELOW:
        for file in files(layer):
            if "sglang_plugin" not in file.parts:
                assert not {m for m in imports(file) if m.partition(".")[0] in ("sglang", "sgl_kernel")}, file


def test_only_settings_and_commands_know_hydra() -> None:
    doors = (ROOT / "reason" / "compose.py", ROOT / "reason" / "command.py")
    for layer in ("decoding", "search", "reason"):
        for file in files(layer):
            if file not in doors:
                assert not {m for m in imports(file) if m.partition(".")[0] in ("hydra", "omegaconf")}, file


def test_importing_reason_loads_nothing_heavy() -> None:
    heavy = [
        "torch",
        "transformers",
        "hydra",
        "networkx",
        "math_verify",
        "datasets",
        "scipy",
        "rich",
        "httpx2",
        "sglang",
    ]
    code = f"import sys, reason; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
