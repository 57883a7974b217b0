"""Measure the page of a large search tree in a real browser: until it is drawn, and until it answers a hand.

python scripts/dev/measure_pages.py                    a tree of 5,000 steps
python scripts/dev/measure_pages.py --steps 20000 --out shots    also screenshots: wide, phone and dark

Needs playwright and its Chromium. Each action is timed from its event to the frame behind it, 16 ms or less of which
are the wait for that frame; the table has the median and the slowest of ten. Exit code 1 if the median of one is above
100 ms, which a hand takes for a pause.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from reason.bench.page_tree import make_tree
from reason.runs.pages import tree_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LIMIT_MS = 100
REPEATS = 10

TIMED = """async ([action]) => {
  const act = new Function(action);
  const begin = performance.now();
  act();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begin;
}"""
"""Runs an action and returns the milliseconds until the frame behind it is drawn."""

ACTIONS = {
    "zoom in": "document.getElementById('zoom-in').click()",
    "zoom out": "document.getElementById('zoom-out').click()",
    "wheel": (
        "document.querySelector('#tree canvas').dispatchEvent(new WheelEvent('wheel',"
        " {deltaY: -120, ctrlKey: true, clientX: 300, clientY: 400, bubbles: true, cancelable: true}))"
    ),
    "fit": "document.getElementById('fit').click()",
    "to the winner": "document.getElementById('winner').click()",
    "arrow key": (
        "document.getElementById('tree').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowUp', bubbles: true}))"
    ),
    "place in the search": (
        "const place = document.getElementById('place'); place.value = Math.floor(Math.random() * place.max);"
        " place.dispatchEvent(new Event('input'))"
    ),
    "find": (
        "const find = document.getElementById('find'); find.value = find.value === 'even' ? 'odd' : 'even';"
        " find.dispatchEvent(new Event('input'))"
    ),
}

CLICK = """([x, y]) => {
  const canvas = document.querySelector('#tree canvas'), box = canvas.getBoundingClientRect();
  const at = {clientX: box.left + x * box.width, clientY: box.top + y * box.height, pointerId: 1, bubbles: true};
  for (const kind of ['pointerdown', 'pointerup']) canvas.dispatchEvent(new PointerEvent(kind, at));
}"""


def measure_page(page: Page, address: str) -> dict[str, list[float]]:
    """Returns the milliseconds of loading and of each action."""
    page.goto(address)
    page.wait_for_selector("[role=tree][data-shown]")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    drawn = page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done(performance.now())))")
    times = {"first paint": [float(paint)], "drawn": [float(drawn)]}
    for name, action in ACTIONS.items():
        times[name] = [page.evaluate(TIMED, [action]) for _ in range(REPEATS)]
    page.evaluate(TIMED, [ACTIONS["fit"]])
    chance = random.Random(0)
    clicks = [f"({CLICK})([{chance.uniform(0.2, 0.8)}, {chance.uniform(0.2, 0.8)}])" for _ in range(REPEATS)]
    times["click on a step"] = [page.evaluate(TIMED, [click]) for click in clicks]
    return times


def take_shots(browser: Browser, address: str, folder: Path) -> None:
    """Writes screenshots: wide, phone and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {"wide": (1440, 900, "light"), "phone": (390, 844, "light"), "dark": (1440, 900, "dark")}
    for name, (width, height, scheme) in kinds.items():
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
        )
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("[role=tree][data-shown]")
        page.screenshot(path=folder / f"{name}.png", full_page=name == "phone")
        context.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000, help="steps of the tree; default: %(default)s")
    parser.add_argument("--out", type=Path, help="folder for screenshots")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    record = make_tree(args.steps)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder, "tree.html")
        file.write_text(tree_page(record, None), encoding="utf-8")
        print(f"{len(record['nodes']):,} steps, {file.stat().st_size / 1e6:.1f} MB")
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        browser = playwright.chromium.launch(executable_path=chromium)  # None: the one that playwright has installed
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        times = measure_page(page, file.as_uri())
        if args.out:
            take_shots(browser, file.as_uri(), args.out)
        browser.close()
    for name, values in times.items():
        print(f"{name:20} {statistics.median(values):7.0f} ms  slowest {max(values):5.0f} ms")
    answers = [statistics.median(values) for name, values in times.items() if name not in ("first paint", "drawn")]
    return int(max(answers) > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
