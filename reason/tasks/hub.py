"""Loads rows of a data set from the hub; without a network it fails within two seconds and names the file to give."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from reason.models.hub import is_hub_reachable
from reason.tasks.rows import DatasetRow, DataUnavailable, read_rows


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """Location of a data set on the hub, and the fields that a copy of it must have."""

    repo: str
    split: str
    fields: str
    config: str | None = None
    note: str = ""

    def unavailable_error(self, failed: str, why: str = "") -> DataUnavailable:
        """Returns the error: what failed, and what to do."""
        return DataUnavailable(
            f"{failed} {self.repo}{why}{self.note}; download its {self.split} split as JSONL and pass "
            f"task.path=FILE.jsonl (fields: {self.fields})"
        )


def load_rows(path: str | None, hub: HubDataset) -> list[DatasetRow]:
    """Loads the rows of the file, or without a file those of the hub or of the cache of `datasets`.

    Raises: DataUnavailable, InvalidRow.
    """
    return read_rows(path) if path is not None else hub_rows(hub)


def hub_rows(hub: HubDataset) -> list[DatasetRow]:
    """Loads all rows of the split through `datasets`. Raises: DataUnavailable; without a network at once."""
    if not (is_cached(hub.repo) or is_hub_reachable()):
        raise hub.unavailable_error("cannot reach the hub for")
    if importlib.util.find_spec("datasets") is None:
        raise hub.unavailable_error("the package 'datasets' is needed to load", " (pip install 'reason-search[hub]')")
    import datasets

    datasets.disable_progress_bars()
    try:
        table = datasets.load_dataset(hub.repo, hub.config, split=hub.split)
    except Exception as error:  # its parts raise many kinds of errors; each means that there is no data
        first = (str(error).splitlines() or [""])[0].rstrip(". ")
        raise hub.unavailable_error("cannot load", f" from the hub ({type(error).__name__}: {first})") from error
    return [DatasetRow(dict(fields), hub.repo, index + 1, index) for index, fields in enumerate(table)]


def is_cached(repo: str) -> bool:
    """Returns whether `datasets` may have this data set on disk; it is then tried even without a network."""
    from huggingface_hub.constants import HF_HOME

    folder = Path(os.environ.get("HF_DATASETS_CACHE") or Path(HF_HOME) / "datasets").expanduser()

    def squash(name: str) -> str:  # `datasets` writes org/MATH-500 as org___math-500
        return name.lower().replace("_", "")

    return folder.is_dir() and squash(repo.replace("/", "")) in {squash(entry.name) for entry in folder.iterdir()}
