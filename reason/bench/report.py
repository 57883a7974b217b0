"""Puts a report together: Markdown that ends with its figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping


def join_report(
    title: str,
    command: str,
    parts: Iterable[str],
    *,
    machine: Mapping[str, object] | None = None,
    figures: Mapping[str, object] | None = None,
) -> str:
    """Returns a report in Markdown: title, command, machine, parts with a blank line between them, figures as JSON.

    command  what makes the report again
    parts    paragraphs, tables and sections; empty ones are left out

    >>> print(join_report("Sums", "reason bench sums", ["All right.", ""], machine={"cpus": 2}, figures={"sum": 4}))
    # Sums
    <BLANKLINE>
    `reason bench sums`
    <BLANKLINE>
    cpus 2
    <BLANKLINE>
    All right.
    <BLANKLINE>
    ```json
    {"sum": 4}
    ```
    <BLANKLINE>
    """
    about = [f"# {title}", f"`{command}`", describe_facts(machine or {})]
    data = [] if figures is None else [f"```json\n{json.dumps(figures)}\n```"]
    return "\n\n".join(part for part in (*about, *parts, *data) if part) + "\n"


def describe_facts(facts: Mapping[str, object]) -> str:
    """Returns names and values as one line.

    >>> describe_facts({"cpus": 2, "gpu": None})
    'cpus 2, gpu None'
    """
    return ", ".join(f"{name} {value}" for name, value in facts.items())
