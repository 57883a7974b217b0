"""Copies the packages of the project into one, and rewrites their imports: `search.tree` becomes `reason.search.tree`.

Only import statements are rewritten, at the places where the syntax tree has them. Everything else that may name a
module must work in a checkout and in a wheel, or the build fails: a dotted name in a string or in a yaml (write
`reason.search...`, or a `_target_`, which `reason.config.prefix` resolves), and `import search.x`, which binds the name
`search`.
"""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

OUTER = "reason"
INNER = ("search", "decoding", "conf")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")
LOADERS = (
    "files",
    "import_module",
    "__import__",
    "find_spec",
    "resolve_name",
    "get_object",
    "initialize_config_module",
)
"""Functions that take the name of a module as text."""
DOTTED = re.compile(rf"(?<![\w./])(?:{'|'.join(INNER)})(?:\.\w+)+")
PACKAGE_URL = re.compile(rf"pkg://(?:{'|'.join(INNER)})\b")
CLASS_KEYS = re.compile(r"^\s*-?\s*(?:class|\(\)|factory|func)\s*:\s*(?P<name>\S+)")


class RewriteError(Exception):
    """The build cannot say what a name in a source means in a wheel."""


def stage_package(home: Path, stage: Path) -> None:
    """Writes to the empty folder `stage` what setuptools makes the wheel of. Raises: RewriteError."""
    for name in BESIDE:
        shutil.copy(home / name, stage / name)
    check_entry_points(home / "pyproject.toml")
    ignore = shutil.ignore_patterns("__pycache__", "*.py[cod]", "*.egg-info")
    shutil.copytree(home / OUTER, stage / OUTER, ignore=ignore)
    for name in INNER:
        if (home / OUTER / name).exists() or (home / OUTER / f"{name}.py").exists():
            raise RewriteError(f"{OUTER}/{name} is the place of {name}/ in a wheel; call it something else")
        shutil.copytree(home / name, stage / OUTER / name, ignore=ignore)
    for file in sorted((stage / OUTER).rglob("*")):
        place = str(file.relative_to(stage))
        if file.suffix == ".py":
            source = file.read_text(encoding="utf-8")
            rewritten = prefix_imports(source, place, home)
            if rewritten != source:
                file.write_text(rewritten, encoding="utf-8")
        elif file.suffix in (".yaml", ".yml"):
            check_yaml(file.read_text(encoding="utf-8"), place)


def prefix_imports(source: str, place: str, home: Path) -> str:
    """Returns the source with imports of the inner packages below the outer one.

    place  of the source, for errors
    home   the repository, in which names are looked up

    Raises: RewriteError.
    """
    tree = ast.parse(source)
    lines = [line.encode() for line in source.splitlines(keepends=True)]  # columns of syntax trees are in bytes
    edits: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.level == 0 and is_inner(node.module or ""):  # a relative one stays inside its package
                edits.append((node.lineno, _column_of_module(lines, node, place)))
        elif isinstance(node, ast.Import):
            for alias in (alias for alias in node.names if is_inner(alias.name)):
                if alias.asname is None:
                    raise RewriteError(
                        f"{place}:{node.lineno}: import {alias.name} binds a name that a wheel has not; "
                        f"write from ... import, or import ... as"
                    )
                edits.append((alias.lineno, alias.col_offset))
    check_strings(tree, place, home)
    for line, column in sorted(edits, reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:column] + f"{OUTER}.".encode() + text[column:]
    return b"".join(lines).decode()


def _column_of_module(lines: list[bytes], node: ast.ImportFrom, place: str) -> int:
    begin = re.compile(rb"from\s+(?=" + re.escape((node.module or "").encode()) + rb"\s+import\b)")
    match = begin.match(lines[node.lineno - 1], node.col_offset)
    if match is None:
        raise RewriteError(f"{place}:{node.lineno}: write from ... import on one line")
    return match.end()


def check_strings(tree: ast.AST, place: str, home: Path) -> None:
    """Raises RewriteError where a text that is no docstring names a module of an inner package."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in LOADERS and is_inner(str(node.args[0].value)):
                raise RewriteError(f"{place}:{node.lineno}: {function} needs {OUTER}.{node.args[0].value!s}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            for name in named_modules(node.value, home):
                raise RewriteError(f"{place}:{node.lineno}: {name!r} is a module; in a wheel it is {OUTER}.{name}")


def named_modules(text: str, home: Path) -> Iterator[str]:
    """Yields the names in a text of modules of inner packages; `search.n` is a setting."""
    for match in DOTTED.finditer(text):
        path = home / "/".join(match[0].split(".")[:2])
        if path.is_dir() or path.with_suffix(".py").is_file():
            yield match[0]
    yield from (match[0] for match in PACKAGE_URL.finditer(text))


def check_yaml(text: str, place: str) -> None:
    """Raises RewriteError where a yaml names an inner package other than as a `_target_`."""
    for number, line in enumerate(text.splitlines(), 1):
        named = CLASS_KEYS.match(line)
        if (named is not None and is_inner(named["name"].strip("\"'"))) or PACKAGE_URL.search(line):
            raise RewriteError(f"{place}:{number}: write {OUTER}.... in {line.strip()!r}")


def check_entry_points(pyproject: Path) -> None:
    """Raises RewriteError where a command or an entry point names an inner package."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    for group in (project.get("scripts", {}), *project.get("entry-points", {}).values()):
        for name, target in group.items():
            if not target.startswith(f"{OUTER}."):
                raise RewriteError(f"pyproject.toml: the entry point {name} must begin with {OUTER}.: {target}")


def is_inner(name: str) -> bool:
    """Returns whether a dotted name begins with an inner package.

    >>> is_inner("search.tree"), is_inner("searching"), is_inner("reason.search")
    (True, False, False)
    """
    return name.partition(".")[0] in INNER
