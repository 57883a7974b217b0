"""Rows of a data set from the hub, or within two seconds the one sentence that says which file to give instead."""

from __future__ import annotations

import importlib.util
import os
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from reason.tasks.rows import DataUnavailable, Row, read_rows

PROBE_S = 1.5


@dataclass(frozen=True, kw_only=True)
class HubData:
    """Where a data set is on the hub, and which fields a copy of it must have."""

    repo: str
    split: str
    fields: str
    config: str | None = None
    note: str = ""

    def unavailable(self, failed: str, why: str = "") -> DataUnavailable:
        """One sentence: what failed, and what to do."""
        return DataUnavailable(
            f"{failed} {self.repo}{why}{self.note}; download its {self.split} split as JSONL and pass "
            f"task.path=FILE.jsonl (fields: {self.fields})"
        )


def load_rows(path: str | None, hub: HubData) -> list[Row]:
    """The rows of the file, or without one those of the hub (or of what `datasets` has in its cache).

    Raises: DataUnavailable, BadRow.
    """
    return read_rows(path) if path is not None else hub_rows(hub)


def hub_rows(hub: HubData) -> list[Row]:
    """All rows of the split, through `datasets`. Raises: DataUnavailable; without a network at once."""
    if not (cached(hub.repo) or reachable()):
        raise hub.unavailable("cannot reach the hub for")
    if importlib.util.find_spec("datasets") is None:
        raise hub.unavailable("the package 'datasets' is needed to load", " (pip install 'reason-search[hub]')")
    import datasets

    datasets.disable_progress_bars()
    try:
        table = datasets.load_dataset(hub.repo, hub.config, split=hub.split)
    except Exception as error:  # it raises whatever its many parts raise; all mean that there is no data
        first = (str(error).splitlines() or [""])[0].rstrip(". ")
        raise hub.unavailable("cannot load", f" from the hub ({type(error).__name__}: {first})") from error
    return [Row(dict(fields), hub.repo, index + 1, index) for index, fields in enumerate(table)]


def reachable() -> bool:
    """True when the hub answers anything at all, through whatever proxy is set, within `PROBE_S` seconds."""
    switches = (os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))
    if any(value in ("1", "ON", "YES", "TRUE") for value in switches):
        return False
    from huggingface_hub.constants import ENDPOINT

    answered = threading.Event()

    def probe() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(ENDPOINT, method="HEAD"), timeout=PROBE_S).close()
        except urllib.error.HTTPError:
            pass  # an answer
        except (OSError, ValueError):
            return
        answered.set()

    thread = threading.Thread(target=probe, daemon=True)  # looking up a name may outlast any timeout
    thread.start()
    thread.join(PROBE_S)
    return answered.is_set()


def cached(repo: str) -> bool:
    """True when `datasets` may have this data set on disk, in which case it is asked even without a network."""
    from huggingface_hub.constants import HF_HOME

    folder = Path(os.environ.get("HF_DATASETS_CACHE") or Path(HF_HOME) / "datasets").expanduser()

    def squash(name: str) -> str:  # `datasets` writes org/MATH-500 as org___math-500
        return name.lower().replace("_", "")

    return folder.is_dir() and squash(repo.replace("/", "")) in {squash(entry.name) for entry in folder.iterdir()}
