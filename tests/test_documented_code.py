"""Python code of the documentation runs, block after block as a reader types it, and finds the right answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reason.serve.presets import load_presets
from tests.support.paths import ROOT
from tests.support.toy_server import ToySearchService, running_server, serve_settings

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
SERVED = "http://127.0.0.1:8000"
"""Where the documentation has a server."""


def blocks_of(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def run_blocks(page: Path, address: str = SERVED) -> dict[str, Any]:
    """Runs the blocks of a page in one namespace, with the server at `address`; returns the namespace."""
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in blocks_of(page):
        exec(compile(block.replace(SERVED, address), page.name, "exec"), namespace)
    return namespace


PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if blocks_of(page)]
LOCAL = [page for page in PAGES if not any(SERVED in block for block in blocks_of(page))]


@pytest.fixture
def address() -> Iterator[str]:
    service = ToySearchService(serve_settings(), load_presets(["speculation=off"], ["beam-16"]))
    with running_server(service) as url:
        yield url


def test_most_blocks_need_no_server() -> None:
    assert {page.name for page in LOCAL} >= {"README.md", "index.md", "library.md", "readers.md"}
    assert len(LOCAL) < len(PAGES)


@pytest.mark.parametrize("page", LOCAL, ids=lambda page: str(page.name))
def test_blocks_run_and_find_the_answer(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The documentation's question has the answer 15."""
    assert run_blocks(page)["solution"].answer == "15"
    assert re.search(r"\b15\b", capsys.readouterr().out)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in LOCAL], ids=lambda page: str(page.name))
def test_blocks_run_against_a_server(page: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks(page, address)
    assert address in capsys.readouterr().out
