"""Measure the page of a large search tree in a real browser: until it is drawn, and until it answers a hand.

python scripts/dev/measure_pages.py                    a tree of 5,000 steps
python scripts/dev/measure_pages.py --steps 20000 --out shots    also screenshots: wide, phone and dark

Needs playwright and its Chromium. Each action is timed from its event to the frame behind it, 16 ms or less of which
are the wait for that frame. Beside it is the CPU time of the page's main thread, which other work on the machine
hardly changes. The table has the median and the slowest of ten. Exit code 1 if the median CPU time of an action is
above 50 ms: with the wait and the drawing, a hand takes 100 ms for a pause.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reason.bench.page_tree import make_tree
from reason.runs.pages import tree_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LIMIT_MS = 50
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


class Measured(NamedTuple):
    """Milliseconds of one action: by the clock, and CPU time of the main thread."""

    wall: float
    work: float


Times = dict[str, list[Measured]]


def measure_page(page: Page, address: str, repeats: int = REPEATS) -> tuple[dict[str, float], Times]:
    """Returns the milliseconds of loading, and those of each action."""
    page.goto(address)
    page.wait_for_selector("[role=tree][data-shown]")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    drawn = page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done(performance.now())))")
    read_work = make_clock(page)

    def time_action(action: str) -> Measured:
        before = read_work()
        wall = float(page.evaluate(TIMED, [action]))
        return Measured(wall, read_work() - before)

    times = {name: [time_action(action) for _ in range(repeats)] for name, action in ACTIONS.items()}
    time_action(ACTIONS["fit"])
    chance = random.Random(0)
    clicks = [f"({CLICK})([{chance.uniform(0.2, 0.8)}, {chance.uniform(0.2, 0.8)}])" for _ in range(repeats)]
    times["click on a step"] = [time_action(click) for click in clicks]
    return {"first paint": float(paint), "drawn": float(drawn)}, times


def make_clock(page: Page) -> Callable[[], float]:
    """Returns a function that reads the CPU time of the page's main thread, in milliseconds."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def read() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    return read


def median_work(times: Times) -> dict[str, float]:
    """Returns the median CPU time of each action, in milliseconds."""
    return {name: statistics.median(measured.work for measured in values) for name, values in times.items()}


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
        loading, times = measure_page(page, file.as_uri())
        if args.out:
            take_shots(browser, file.as_uri(), args.out)
        browser.close()
    for name, value in loading.items():
        print(f"{name:20} {value:7.0f} ms")
    work = median_work(times)
    for name, values in times.items():
        walls = [measured.wall for measured in values]
        print(f"{name:20} {statistics.median(walls):7.0f} ms  slowest {max(walls):5.0f} ms  CPU {work[name]:4.0f} ms")
    return int(max(work.values()) > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
