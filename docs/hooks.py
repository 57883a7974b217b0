"""Fill pages from the files they are about: settings from `conf/`, commands from `benchmarks/`, names from docstrings.

python docs/hooks.py     writes docs/settings.md and the list in docs/library.md, which are in the repository

mkdocs fills the commands of benchmarks while it builds, and makes the reference of the library itself.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[1]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs calls this for every page."""
    return markdown.replace("{{ benchmarks }}", benchmarks())


BEGIN = "<!-- from here on written by python docs/hooks.py -->"
END = "<!-- up to here -->"


def written_pages() -> dict[Path, str]:
    """The pages that are in the repository, as they should be."""
    docs = HOME / "docs"
    return {
        docs / "settings.md": filled(docs / "settings.md", settings()),
        docs / "library.md": filled(docs / "library.md", names_of_library()),
    }


def filled(page: Path, text: str) -> str:
    """The page with this text between its two marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{page.name} lacks the lines {BEGIN} and {END}"
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def names_of_library() -> str:
    """A table for each name that docs/library.md has a reference of: what is in it, in one sentence."""
    parts = []
    for target in re.findall(r"^::: (\S+)$", (HOME / "docs" / "library.md").read_text(encoding="utf-8"), re.MULTILINE):
        parts += [f"**`{target}`**", "\n".join(["| name | what it is or does |", "|---|---|", *rows_of(target)])]
    return "\n\n".join(parts)


def rows_of(target: str) -> list[str]:
    """The public classes and functions of a module, or a class with its public methods, or a function."""
    module, names = target.replace(".", "/"), []
    while not ((file := HOME / f"{module}.py").exists() or (file := HOME / module / "__init__.py").exists()):
        module, _, name = module.rpartition("/")
        names.append(name)
    found: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    if not names:
        return [row_of(node) for node in public_nodes(found)]
    (name,) = names
    (node,) = (each for each in public_nodes(found) if each.name == name)
    return [row_of(node), *(row_of(each, f"{name}.") for each in public_nodes(node) if isinstance(node, ast.ClassDef))]


Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public_nodes(parent: ast.AST) -> list[Named]:
    """Classes and functions with a docstring and without an underscore."""
    body = getattr(parent, "body", [])
    named = [node for node in body if isinstance(node, Named) and not node.name.startswith("_")]
    return [node for node in named if ast.get_docstring(node) is not None]


def row_of(node: Named, owner: str = "") -> str:
    """A line of a table: the name, with a function's parameters, and the first sentence of its docstring."""
    about = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.])\s", about)[0].rstrip(":;")
    given = "" if isinstance(node, ast.ClassDef) else f"({parameters_of(node)})"
    return f"| `{owner}{node.name}{given}` | {sentence.replace('|', chr(92) + '|')} |"


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The names of a function's parameters, keyword ones behind a star."""
    args = node.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args) if arg.arg not in ("self", "cls")]
    names += [f"*{args.vararg.arg}"] if args.vararg else ["*"] if args.kwonlyargs else []
    return ", ".join([*names, *(arg.arg for arg in args.kwonlyargs), *([f"**{args.kwarg.arg}"] if args.kwarg else [])])


def settings() -> str:
    """Each program's yaml, then every group of `conf/` with its members: what it is, and its settings."""
    parts = []
    for file in sorted((HOME / "conf").glob("*.yaml")):
        parts += [f"## {file.name}", *described(file)]
    for group in sorted(folder for folder in (HOME / "conf").iterdir() if any(folder.glob("*.yaml"))):
        parts.append(f"## {group.name}=")
        for file in sorted(group.glob("*.yaml")):
            parts += [f"### {file.stem}", *described(file)]
    return "\n\n".join(parts)


def described(file: Path) -> list[str]:
    """The comment at the top of a yaml as text, and the rest as it is."""
    lines = file.read_text(encoding="utf-8").splitlines()
    count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    about = [line.removeprefix("#").strip() for line in lines[:count] if "@package" not in line]
    return [f"`{file.relative_to(HOME)}`: {' '.join(about)}", "\n".join(["```yaml", *lines[count:], "```"])]


def benchmarks() -> str:
    """Every report and the command that made it, which it gives itself."""
    parts = []
    for file in sorted((HOME / "benchmarks").glob("*.md")):
        text = file.read_text(encoding="utf-8")
        command = re.search(r"`((?:python scripts/|reason bench )[^`]+)`", text)
        assert command is not None, f"{file.name} does not say what made it"
        parts += [f"## {text.splitlines()[0].lstrip('# ')}", f"`benchmarks/{file.name}`", f"```\n{command[1]}\n```"]
    return "\n\n".join(parts)


if __name__ == "__main__":
    for written, text in written_pages().items():
        written.write_text(text, encoding="utf-8")
