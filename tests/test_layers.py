"""Imports point down and never in a circle; heavy packages stay out of light modules. Read from the syntax trees."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.support.paths import ROOT

BELOW = {
    "decoding": {"decoding"},
    "search": {"search", "decoding"},
    "reason": {"reason", "search", "decoding"},
    "scripts": {"reason", "scripts"},
}
LAYERS = ("decoding", "search", "reason")
HOUSE = {"decoding", "search", "reason", "scripts", "conf", "tests"}
HEAVY = (
    *("torch", "transformers", "hydra", "networkx", "math_verify", "datasets", "scipy", "rich", "httpx2", "sglang"),
)


@dataclass(frozen=True)
class Import:
    """An import of `module` at `line` of `file`, inside functions and for type checking too."""

    file: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


@cache
def layer_files(layer: str) -> tuple[Path, ...]:
    """The files of a layer, without those that stand in for other people's packages."""
    return tuple(file for file in sorted((ROOT / layer).rglob("*.py")) if "cpu_stand_ins" not in file.parts)


@cache
def file_imports(file: Path) -> tuple[Import, ...]:
    def modules(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)

    tree = ast.parse(file.read_text(encoding="utf-8"))
    return tuple(Import(file, getattr(node, "lineno", 0), name) for node in ast.walk(tree) for name in modules(node))


def module_file(module: str) -> Path | None:
    """The file of one of our modules; None for other packages and for names inside a module."""
    path = ROOT / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def folder_of(file: Path) -> str:
    """The node of a file: its folder; a module at the top of a layer is a node of its own.

    >>> folder_of(ROOT / "reason" / "solver.py"), folder_of(ROOT / "reason" / "runs" / "pages" / "tree.py")
    ('reason/solver.py', 'reason/runs/pages')
    """
    parts = file.relative_to(ROOT).parts
    return "/".join(parts[:-1] if len(parts) > 2 else parts)


def folder_imports() -> dict[tuple[str, str], list[Import]]:
    """Imports between folders, by importing and imported folder; those between a folder and its subfolders are free."""
    edges: dict[tuple[str, str], list[Import]] = {}
    for file in (file for layer in LAYERS for file in layer_files(layer)):
        for found in file_imports(file):
            target = module_file(found.module)
            if target is None or (target.name == "__init__.py" and not target.read_text(encoding="utf-8").strip()):
                continue
            here, there = folder_of(file), folder_of(target)
            if here != there and not f"{here}/".startswith(f"{there}/") and not f"{there}/".startswith(f"{here}/"):
                edges.setdefault((here, there), []).append(found)
    return edges


def cycles(edges: dict[tuple[str, str], list[Import]]) -> list[str]:
    """One text per circle of folders, with the import lines that close it."""
    circles = (nodes for nodes in nx.strongly_connected_components(nx.DiGraph(edges.keys())) if len(nodes) > 1)
    return [
        f"{' <-> '.join(sorted(nodes))}:\n"
        + "\n".join(f"  {line}" for (a, b), lines in sorted(edges.items()) if {a, b} <= nodes for line in lines)
        for nodes in circles
    ]


@pytest.mark.parametrize("layer", BELOW)
def test_a_layer_imports_itself_and_what_is_below(layer: str) -> None:
    for file in layer_files(layer):
        for found in file_imports(file):
            top = found.module.partition(".")[0]
            assert top not in HOUSE or top in BELOW[layer], str(found)


def test_no_folders_import_each_other_in_a_circle() -> None:
    found = cycles(folder_imports())
    assert not found, "\n".join(found)


def test_a_circle_is_reported_with_the_lines_that_close_it() -> None:
    there, back = Import(ROOT / "a" / "x" / "m.py", 3, "b.y"), Import(ROOT / "b" / "y" / "n.py", 4, "a.x.m")
    edges = {("a/x", "b/y"): [there], ("b/y", "a/x"): [back], ("a/x", "c/z"): [there]}
    assert cycles(edges) == ["a/x <-> b/y:\n  a/x/m.py:3 imports b.y\n  b/y/n.py:4 imports a.x.m"]


def test_search_imports_only_the_core_of_decoding_and_few_packages() -> None:
    packages = {
        "tree.py": "networkx",
        "tree_export.py": "networkx",
        "clustering.py": "scipy",
        "ets_program.py": "scipy",
    }
    for file in layer_files("search"):
        for found in file_imports(file):
            top = found.module.partition(".")[0]
            allowed = top in sys.stdlib_module_names or top in ("search", "numpy", packages.get(file.name))
            allowed |= found.module == "decoding" or found.module.startswith(("decoding.core", "decoding.validation"))
            assert allowed, str(found)


def test_the_core_imports_only_validation_and_stats() -> None:
    def ours(name: str) -> set[str]:
        found = {one.module for one in file_imports(ROOT / "decoding" / name)}
        return {module for module in found if module.partition(".")[0] in HOUSE}

    below = ("decoding.validation", "decoding.stats")
    assert all(module.startswith(below) for module in ours("core.py"))
    assert not ours("validation.py") | ours("stats.py")


def test_only_the_plugin_imports_sglang() -> None:
    for file in (file for layer in BELOW for file in layer_files(layer)):
        for found in file_imports(file):
            assert "sglang_plugin" in file.parts or found.module.partition(".")[0] not in ("sglang", "sgl_kernel"), str(
                found
            )


def test_only_settings_and_commands_import_hydra() -> None:
    doors = (ROOT / "reason" / "config" / "compose.py", ROOT / "reason" / "runs" / "command.py")
    for file in (file for layer in LAYERS for file in layer_files(layer) if file not in doors):
        for found in file_imports(file):
            assert found.module.partition(".")[0] not in ("hydra", "omegaconf"), str(found)


def test_importing_reason_loads_nothing_heavy() -> None:
    code = f"import sys, reason; print([m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
