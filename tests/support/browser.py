"""Reads the drawing of a tree page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

Opener = Callable[..., "Page"]


def tree_shown(page: Page, attribute: str) -> str | None:
    """Returns an attribute of the drawing, once it is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.get_by_role("tree").get_attribute(f"data-{attribute}")


def pixels(page: Page, variable: str) -> int:
    """Counts the pixels of the drawing with exactly the colour of this CSS variable."""
    tree_shown(page, "shown")
    count: int = page.evaluate(
        """(name) => {
          const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
          const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
          const canvas = document.querySelector("[role=tree] canvas");
          const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
          copy.drawImage(canvas, 0, 0);
          const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let at = 0; at < data.length; at += 4) count += wanted.every((value, k) => data[at + k] === value);
          return count;
        }""",
        variable,
    )
    return count


def source_text(page: Page, selector: str) -> str:
    """Returns the text of an element with the LaTeX of its formulas in the place of what is drawn."""
    text: str = page.locator(selector).evaluate(
        """(element) => {
          const copy = element.cloneNode(true);
          for (const drawn of copy.querySelectorAll(".math")) drawn.replaceWith(drawn.title);
          return copy.textContent.trim();
        }"""
    )
    return text


def slide(page: Page, place: int) -> None:
    page.get_by_role("slider", name="Place in the search").fill(str(place))
