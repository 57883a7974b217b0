"""Fill two pages from the files they are about: settings from `conf/`, commands from `benchmarks/`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[1]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs calls this for every page."""
    return markdown.replace("{{ settings }}", settings()).replace("{{ benchmarks }}", benchmarks())


def settings() -> str:
    """Each program's yaml, then every group of `conf/` with its members: what it is, and its settings."""
    parts = []
    for file in sorted((HOME / "conf").glob("*.yaml")):
        parts += [f"## conf/{file.name}", *described(file)]
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
    return [" ".join(about), "\n".join(["```yaml", *lines[count:], "```"])]


def benchmarks() -> str:
    """Every report and the command that made it, which it gives itself."""
    parts = []
    for file in sorted((HOME / "benchmarks").glob("*.md")):
        text = file.read_text(encoding="utf-8")
        command = re.search(r"`(python scripts/[^`]+)`", text)
        assert command is not None, f"{file.name} does not say what made it"
        parts += [f"## {text.splitlines()[0].lstrip('# ')}", f"`benchmarks/{file.name}`", f"```\n{command[1]}\n```"]
    return "\n\n".join(parts)
