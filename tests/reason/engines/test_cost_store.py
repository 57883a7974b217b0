"""Timed rounds are kept for the next start of the same machine, model and version, and for no other."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import reason
from decoding.speculation.interfaces import RoundCost
from reason.engines import cost_store, local
from reason.engines.cost_store import MAX_AGE_S, MAX_FILES, identify_machine, read_costs, save_costs

HERE = {"node": "here", "threads": 2, "model": {"hidden_size": 8}}
COSTS = [RoundCost(1, 1, 32, 1e-3), RoundCost(8, 40, 256, 4.5e-3)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REASON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / cost_store.FOLDER


def test_rounds_come_back_for_the_same_description_only() -> None:
    assert read_costs(HERE) is None
    save_costs(HERE, COSTS)
    assert read_costs(HERE) == COSTS
    for other in ({"node": "there"}, {"threads": 1}, {"model": {"hidden_size": 9}}, {"torch": "3"}):
        assert read_costs(HERE | other) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "{}", '{"format": 1}', "x" * (2 << 20)),
        json.dumps({"format": 0, "description": HERE, "costs": [{}]}),
        json.dumps({"format": 1, "description": HERE, "costs": []}),
        json.dumps({"format": 1, "description": HERE, "costs": [{"seconds": 1}]}),
        json.dumps({"format": 1, "description": HERE | {"node": "x"}, "costs": []}),
        '{"format": 1, "description": {"node": "here", "threads": 2, "model": {"hidden_size": 8}}, "costs": '
        '[{"num_branches": 1, "num_tokens": 1, "context_tokens": 1, "seconds": NaN}]}',
        '{"format": 1, "description": {"node": "here", "threads": 2, "model": {"hidden_size": 8}}, "costs": '
        '[{"num_branches": 1, "num_tokens": "1", "context_tokens": 1, "seconds": 1}]}',
    ],
    ids=lambda text: text[:40],
)
def test_a_file_that_is_not_as_it_was_written_counts_as_none(text: str, cache: Path) -> None:
    save_costs(HERE, COSTS)
    (file,) = cache.iterdir()
    file.write_text(text, encoding="utf-8")
    assert read_costs(HERE) is None
    save_costs(HERE, COSTS)
    assert read_costs(HERE) == COSTS


def test_old_rounds_are_timed_again(cache: Path) -> None:
    save_costs(HERE, COSTS)
    (file,) = cache.iterdir()
    old = file.stat().st_mtime - MAX_AGE_S - 60
    os.utime(file, (old, old))
    assert read_costs(HERE) is None


def test_files_are_few_and_the_newest_stay(cache: Path) -> None:
    for number in range(MAX_FILES + 5):
        save_costs(HERE | {"number": number}, COSTS)
        for age, file in enumerate(sorted(cache.iterdir(), key=lambda one: -one.stat().st_mtime)):
            os.utime(file, (1e9 - age, 1e9 - age))
    assert len(list(cache.iterdir())) == MAX_FILES
    assert not list(cache.glob("*.new"))


def test_a_folder_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.parent.write_text("a file in its place", encoding="utf-8")
    save_costs(HERE, COSTS)
    assert read_costs(HERE) is None
    assert stat.S_ISREG(cache.parent.stat().st_mode)


def test_this_machine_has_plain_values() -> None:
    assert json.loads(json.dumps(identify_machine())) == identify_machine()


def test_second_start_times_no_rounds_unless_it_is_told_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def save_and_count(about: Mapping[str, object], costs: Sequence[RoundCost]) -> None:
        timed.append(len(costs))
        save_costs(about, costs)

    monkeypatch.setattr(local, "save_costs", save_and_count)
    for override in ("true", "true", "false"):
        with reason.load("scorer=none", "search=self_consistency", f"engine.keep_costs={override}"):
            assert len(timed) == 1
    assert len(list(cache.iterdir())) == 1
