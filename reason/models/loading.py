"""Says what is loaded, compiled or timed as it begins, and that it goes on: one line each, as records of one logger.

Commands show the records on stderr (`conf/hydra/job_logging`); a program that uses the library sees them where it shows
records of level INFO.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("reason.progress")

INTERVAL_S = 1.5
"""Seconds between two lines, however long it takes: less than two, because the thread that writes them may wait for its
turn, and a screen without change for two seconds looks stuck."""

_YOUNG_OBJECTS = 100_000


@contextmanager
def announce(what: str) -> Iterator[None]:
    """Logs `what` as it begins, and how long it has taken for as long as it goes on."""
    if not log.isEnabledFor(logging.INFO):
        yield
        return
    log.info("%s ...", what)
    ended = threading.Event()
    reminder = threading.Thread(target=remind, args=(what, ended.wait), daemon=True)
    reminder.start()
    try:
        yield
    finally:
        ended.set()
        reminder.join()


def tell(line: str) -> None:
    """Logs a line beside those of `announce`."""
    log.info(line)


def remind(what: str, wait: Callable[[float], bool], clock: Callable[[], float] = time.monotonic) -> None:
    """Logs how long `what` has taken every INTERVAL_S, until `wait`, which takes a number of seconds, returns True."""
    begin = clock()
    while not wait(INTERVAL_S):
        log.info("%s ... %.0f s", what, clock() - begin)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pauses Python's garbage collector, if it is on.

    The imports of a start make half a million objects, all of which stay. The collector would walk over them again and
    again, for half a second in all.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_seldom() -> None:
    """Lets Python's garbage collector look for garbage after 100,000 new objects in place of 700.

    What a search makes is needed, or goes as soon as it is not; the collector walks over the tree and finds nothing,
    with 4,096 branches for a quarter of the search's own time. For commands: it holds for the whole process.
    """
    gc.set_threshold(_YOUNG_OBJECTS)


@contextmanager
def hidden_progress_bars() -> Iterator[None]:
    """Switches the progress bars of transformers off meanwhile: one per file of weights, within any output."""
    from transformers.utils import logging  # here: a checkpoint that is plain needs none of it

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
