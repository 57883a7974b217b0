"""A browser tab for tests of pages; those tests are skipped where there is no browser."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser import Opener

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    """One tab per module, closed with it: its event loop would block the loops of other tests."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("no playwright: pip install playwright")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program)
        page = browser.new_context(offline=True).new_page()
        page.set_default_timeout(10_000)
        yield page
        browser.close()


@pytest.fixture
def visit(tab: Page, tmp_path: Path) -> Iterator[Opener]:
    """Opens the text of a page; asserts at the end that no page had errors or requested another address."""
    file = tmp_path / "page.html"
    page_errors: list[str] = []
    listeners: dict[Any, Callable[[Any], None]] = {
        "console": lambda message: page_errors.append(f"{message.type}: {message.text}"),
        "pageerror": lambda error: page_errors.append(str(error)),
        "request": lambda request: page_errors.append(request.url) if request.url != file.as_uri() else None,
    }
    for event, listener in listeners.items():
        tab.on(event, listener)

    def open_page(text: str, *, width: int = 1280, height: int = 800, scheme: Any = "light") -> Page:
        file.write_text(text, encoding="utf-8")
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(color_scheme=scheme)
        tab.goto(file.as_uri())
        return tab

    yield open_page
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert page_errors == []
