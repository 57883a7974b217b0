"""Rules on imports of packages, and on imports and private attributes in tests, read from the syntax trees."""

from __future__ import annotations

import ast
import re
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
COMMANDS = ROOT / "reason" / "commands"
TESTS = ROOT / "tests"
MAX_TEST_LINES = 400
PRIVATE_ATTRIBUTES_OF_OTHERS = {
    "sys._current_frames": "the only way to read the frames of all threads",
    "sys._getframe": "the only way to read the frame of a caller",
    "torch._C": "a pretended GPU replaces functions below torch's public ones",
    "torch._C._nn": "as torch._C",
    "torch._C._nn._parse_to": "the parser of the arguments of Tensor.to",
    "torch._has_compatible_shallow_copy_type": "decides whether Module.to may keep its parameters",
}
"""Private attributes of other packages that tests may read, with the reason."""
HEAVY = (
    *("torch", "transformers", "hydra", "networkx", "math_verify", "datasets", "scipy", "rich", "httpx2", "sglang"),
    *("numpy", "reason.solver"),
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
    """The files of a layer, without stand-ins for other packages."""
    return tuple(file for file in sorted((ROOT / layer).rglob("*.py")) if "cpu_stand_ins" not in file.parts)


@cache
def file_imports(file: Path, *, loading: bool = False) -> tuple[Import, ...]:
    """The imports of a file; with `loading` only those that run when it is loaded."""

    def modules(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)

    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = loading_nodes(tree) if loading else ast.walk(tree)
    return tuple(Import(file, getattr(node, "lineno", 0), name) for node in nodes for name in modules(node))


def loading_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is loaded: none in functions, nor for type checking."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            todo += ast.iter_child_nodes(node)


def module_file(module: str) -> Path | None:
    """The file of a module of the project; None for other packages and for names inside a module."""
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
        for imported in file_imports(file):
            target = module_file(imported.module)
            if target is None or (target.name == "__init__.py" and not target.read_text(encoding="utf-8").strip()):
                continue
            here, there = folder_of(file), folder_of(target)
            if here != there and not f"{here}/".startswith(f"{there}/") and not f"{there}/".startswith(f"{here}/"):
                edges.setdefault((here, there), []).append(imported)
    return edges


def cycles(edges: dict[tuple[str, str], list[Import]]) -> list[str]:
    """One text per circle of folders, with the import lines that close it."""
    circles = (nodes for nodes in nx.strongly_connected_components(nx.DiGraph(edges.keys())) if len(nodes) > 1)
    return [
        f"{' <-> '.join(sorted(nodes))}:\n"
        + "\n".join(f"  {line}" for (a, b), lines in sorted(edges.items()) if {a, b} <= nodes for line in lines)
        for nodes in circles
    ]


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Private attributes that a file reads of other objects than `self`: in code, by import, and in strings."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names if is_private(alias.name)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("getattr", "setattr"):
            names = [str(one.value) for one in node.args[:2] if isinstance(one, ast.Constant)]
            names = [name for name in names if is_private(name)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # not a name that ends in _, such as _target_: Hydra's keys are public
            names = re.findall(r"\b\w[\w.]*\._[a-z]\w*[a-z0-9]\b", node.value)
        yield from (
            (getattr(node, "lineno", 0), name) for name in names if name.rpartition(".")[0] not in ("self", "cls")
        )


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore.

    >>> [is_private(name) for name in ("_slots", "__dict__", "slots", "_")]
    [True, False, False, False]
    """
    return name.startswith("_") and not name.startswith("__") and len(name) > 1


@pytest.mark.parametrize("layer", BELOW)
def test_layer_imports_itself_and_the_layers_below(layer: str) -> None:
    for file in layer_files(layer):
        for imported in file_imports(file):
            top = imported.module.partition(".")[0]
            assert top not in HOUSE or top in BELOW[layer], str(imported)


def test_folders_do_not_import_each_other_in_a_circle() -> None:
    circles = cycles(folder_imports())
    assert not circles, "\n".join(circles)


def test_circle_is_reported_with_the_import_lines_that_close_it() -> None:
    there, back = Import(ROOT / "a" / "x" / "m.py", 3, "b.y"), Import(ROOT / "b" / "y" / "n.py", 4, "a.x.m")
    edges = {("a/x", "b/y"): [there], ("b/y", "a/x"): [back], ("a/x", "c/z"): [there]}
    assert cycles(edges) == ["a/x <-> b/y:\n  a/x/m.py:3 imports b.y\n  b/y/n.py:4 imports a.x.m"]


def test_search_imports_only_the_core_of_decoding_and_few_packages() -> None:
    packages = {
        "tree.py": ("networkx",),
        "tree_export.py": ("networkx",),
        "clustering.py": ("scipy", "threadpoolctl"),
        "ets_program.py": ("scipy",),
    }
    for file in layer_files("search"):
        for imported in file_imports(file):
            top = imported.module.partition(".")[0]
            allowed = top in sys.stdlib_module_names or top in ("search", "numpy", *packages.get(file.name, ()))
            allowed |= imported.module == "decoding" or imported.module.startswith(
                ("decoding.core", "decoding.validation")
            )
            assert allowed, str(imported)


def test_core_imports_only_validation_and_stats() -> None:
    def ours(name: str) -> set[str]:
        imported = {one.module for one in file_imports(ROOT / "decoding" / name)}
        return {module for module in imported if module.partition(".")[0] in HOUSE}

    below = ("decoding.validation", "decoding.stats")
    assert all(module.startswith(below) for module in ours("core.py"))
    assert not ours("validation.py") | ours("stats.py")


def test_only_the_plugin_imports_sglang() -> None:
    for file in (file for layer in BELOW for file in layer_files(layer)):
        for imported in file_imports(file):
            assert "sglang_plugin" in file.parts or imported.module.partition(".")[0] not in ("sglang", "sgl_kernel"), (
                str(imported)
            )


def test_plugin_loads_only_packages_of_an_environment_of_sglang() -> None:
    requirements = (TESTS / "sglang" / "requirements.txt").read_text(encoding="utf-8")
    packages = {line.partition("==")[0] for line in requirements.splitlines()} | {"sglang", *sys.stdlib_module_names}
    todo = [file for file in layer_files("decoding") if "sglang_plugin" in file.parts]
    reached_files = set(todo)
    while todo:
        for imported in file_imports(todo.pop(), loading=True):
            top, file = imported.module.partition(".")[0], module_file(imported.module)
            assert top in HOUSE or top in packages, str(imported)
            if file is not None and file not in reached_files:
                reached_files.add(file)
                todo.append(file)


def test_only_settings_and_commands_import_hydra() -> None:
    doors = (ROOT / "reason" / "config" / "compose.py", ROOT / "reason" / "runs" / "command.py")
    for file in (file for layer in LAYERS for file in layer_files(layer) if file not in doors):
        if file.is_relative_to(COMMANDS):
            continue
        for imported in file_imports(file):
            assert imported.module.partition(".")[0] not in ("hydra", "omegaconf"), str(imported)


def test_commands_are_the_top_of_reason() -> None:
    top = ROOT / "reason" / "__main__.py"  # `python -m reason`, which is the command
    for file in (file for layer in LAYERS for file in layer_files(layer) if not file.is_relative_to(COMMANDS)):
        if file == top:
            continue
        for imported in file_imports(file):
            assert not f"{imported.module}.".startswith("reason.commands."), str(imported)


def test_importing_reason_loads_nothing_heavy() -> None:
    code = f"import sys, reason; print([m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_tests_import_support_modules_and_no_other_tests() -> None:
    wrong = [
        str(imported)
        for file in sorted(TESTS.rglob("*.py"))
        for imported in file_imports(file)
        if imported.module.partition(".")[0] == "tests" and not f"{imported.module}.".startswith("tests.support.")
    ]
    assert not wrong, "\n".join(wrong)


def test_tests_access_no_private_attributes_of_the_project() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line} reads {name}"
        for file in sorted(TESTS.rglob("*.py"))
        if file != TESTS / "test_layers.py"  # has the allowed names
        for line, name in private_names(ast.parse(file.read_text(encoding="utf-8")))
        if name not in PRIVATE_ATTRIBUTES_OF_OTHERS
    ]
    assert not wrong, "\n".join(wrong)


def test_private_names_are_found_in_code_imports_strings_and_programs() -> None:
    code = """
from reason.build import _made
pool._free
self._held
monkeypatch.setattr(cache, "_slots", [])
monkeypatch.setattr("decoding.compiled._folder", None)
run("print(grader._worker)")
load("task._target_=mine.Task")
"""
    assert {name for _, name in private_names(ast.parse(code))} == {
        *("reason.build._made", "pool._free", "_slots", "decoding.compiled._folder", "grader._worker"),
    }


def test_test_files_have_at_most_400_lines() -> None:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in TESTS.rglob("*.py")}
    assert not {str(file.relative_to(ROOT)): n for file, n in lengths.items() if n > MAX_TEST_LINES}
