"""Keeps the rounds that were timed at a start on disk, so that the next start need not time them again.

A file holds the rounds of one machine, model and version of the code; anything else finds no file and is timed. What
cannot be read, or not be written, counts as not there: then rounds are timed at every start, as without this module.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from hashlib import blake2b
from pathlib import Path

from decoding.speculation.interfaces import RoundCost

FORMAT = 1
FOLDER = "round_costs"
MAX_FILES = 64
MAX_BYTES = 1 << 20
MAX_AGE_S = 30 * 24 * 3600.0
"""Machines change in ways that their description does not show: other memory, another governor, another neighbour."""

Description = Mapping[str, object]
"""What the time of a round depends on: plain values that JSON keeps."""


def cache_folder() -> Path:
    """Returns the user's folder for what can be made again: `REASON_CACHE`, or `reason-search` in the system's one."""
    if chosen := os.environ.get("REASON_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reason-search"


def identify_machine() -> dict[str, object]:
    """Returns what is known of this machine: system, processor, and the cores that this process may use."""
    about = {"node": platform.node(), "machine": platform.machine(), "processor": _processor_name()}
    return about | {"cores": count_cores()}


def count_cores() -> int:
    """Returns the number of cores that this process may use."""
    # os.process_cpu_count, from Python 3.13 on
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_costs(description: Description) -> list[RoundCost] | None:
    """Returns the rounds that were timed under exactly this description; None if there are none to be trusted."""
    file = _file_of(description)
    try:
        if time.time() - file.stat().st_mtime > MAX_AGE_S or file.stat().st_size > MAX_BYTES:
            return None
        saved = json.loads(file.read_text(encoding="utf-8"))
        if saved["format"] != FORMAT or saved["description"] != json.loads(json.dumps(description)):
            return None
        costs = [RoundCost(**cost) for cost in saved["costs"]]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    values = [getattr(cost, field.name) for cost in costs for field in fields(RoundCost)]
    return costs if costs and all(isinstance(value, int | float) and 0 <= value < 1e9 for value in values) else None


def save_costs(description: Description, costs: Sequence[RoundCost]) -> None:
    """Writes the rounds where `read_costs` finds them; removes the oldest files where there are too many.

    The file is there at once or not at all. A folder that cannot be written is left alone.
    """
    file = _file_of(description)
    saved = {"format": FORMAT, "description": dict(description), "costs": [asdict(cost) for cost in costs]}
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".new", delete=False, encoding="utf-8") as new:
            new.write(json.dumps(saved))
        os.replace(new.name, file)
        files = sorted(file.parent.iterdir(), key=lambda one: one.stat().st_mtime, reverse=True)
        for old in files[MAX_FILES:]:
            old.unlink()


def _file_of(description: Description) -> Path:
    digest = blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=16).hexdigest()
    return cache_folder() / FOLDER / f"{digest}.json"


def _processor_name() -> str:
    """The name of the processor, which Linux tells in a file only."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
