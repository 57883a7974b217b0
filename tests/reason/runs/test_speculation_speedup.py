"""The summary tells what drafts gained in this run, and nothing where no controller compares rounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from decoding.core import Engine
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.memory import MemoryController
from decoding.speculation.controllers.seconds_saved import find_seconds_saved
from decoding.speculation.controllers.throughput import ThroughputController
from decoding.speculation.controllers.until_compiled import PlainUntilCompiled
from decoding.stats import EngineStats
from reason.runs.progress import ThroughputMeter
from reason.runs.summary import summarise_results
from reason.runs.summary_rows import summary_rows
from tests.support.search_records import make_results


def read_speedup(before: EngineStats, after: EngineStats) -> Any:
    engine = SimpleNamespace(stats=before)
    meter = ThroughputMeter(cast("Engine", engine))
    engine.stats = after
    return meter.read_totals()["speculation_speedup"]


def test_it_is_of_the_seconds_since_the_meter_began() -> None:
    before = EngineStats(seconds_rounds=100.0, seconds_saved=500.0)
    assert read_speedup(before, EngineStats(seconds_rounds=110.0, seconds_saved=504.0)) == 1.4
    assert read_speedup(before, EngineStats(seconds_rounds=110.0, seconds_saved=499.0)) == 0.9
    assert read_speedup(EngineStats(), EngineStats(seconds_rounds=10.0, seconds_saved=5.0)) == 1.5


def test_it_is_unknown_without_rounds_or_a_controller_that_compares() -> None:
    assert read_speedup(EngineStats(seconds_saved=0.0), EngineStats(seconds_saved=0.0)) is None
    assert read_speedup(EngineStats(), EngineStats(seconds_rounds=1.0)) is None


@pytest.mark.parametrize(("speedup", "drafted", "shown"), [(1.413, 7, ["1.41x"]), (1.0, 0, []), (None, 7, [])])
def test_the_summary_has_a_row_where_there_were_drafts(speedup: float | None, drafted: int, shown: list[str]) -> None:
    totals = {
        "forwards": 9, "tokens_per_second": 17.0, "accepted_length": 1.5, "speculation_speedup": speedup,
        "cached": None, "peak_kv_sharing": None,
    }  # fmt: skip
    summary: Any = summarise_results(make_results(2)) | {
        "engine_totals": totals,
        "seconds": 1.0,
        "resumed": 0,
        "total": 2,
    }
    summary["usage"] |= {"drafted": drafted}
    assert [value for name, value, _ in summary_rows(summary) if name == "speculation"] == shown


def test_controllers_around_another_one_hand_on_what_it_saved() -> None:
    throughput = ThroughputController()
    assert find_seconds_saved(throughput) == 0.0
    assert find_seconds_saved(MemoryController(PlainUntilCompiled(throughput, lambda: True))) == 0.0
    assert find_seconds_saved(PlainUntilCompiled(FixedController(4), lambda: True)) is None
