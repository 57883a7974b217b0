"""Time is added to the innermost phase, and growth is found where the longest context takes longer."""

from __future__ import annotations

import time

import pytest

from decoding.round import Speculation
from reason.bench.host_round import DEVICE, PHASES, HostCost, PhaseClock, find_growth, measure_host_rounds
from reason.bench.plugin_round import BORDER_PHASES, PLUGIN_PHASES, measure_plugin_rounds


def make_cost(context: int, **phases: float) -> HostCost:
    return HostCost("off", 1, context, 1.0, {phase: phases.get(phase, 0.1) for phase in PHASES}, 0.0)


def test_an_inner_phase_does_not_count_for_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = PhaseClock(), iter([0.0, 1.0, 3.0, 4.0, 8.0, 16.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    with clock.measure_phase("outer"):  # 0 to 16
        with clock.measure_phase("inner"):  # 1 to 3
            pass
        clock.wrap(lambda: None, "inner")()  # 4 to 8
    assert dict(clock.seconds) == {"inner": 6.0, "outer": 10.0}


def test_growth_is_found_from_the_shortest_to_the_longest_context() -> None:
    costs = [make_cost(1000, packing=0.9), make_cost(500, packing=0.3), make_cost(4000, packing=1.2, commit=0.14)]
    assert find_growth(costs) == {"packing": pytest.approx(4.0)}


@pytest.mark.parametrize("attention", ["blocks", "segments"])
def test_every_phase_of_a_round_is_timed(attention: str) -> None:
    cost = measure_host_rounds("off", Speculation(), 3, 80, rounds=2, warmup=1, attention=attention)
    assert tuple(cost.phases) == PHASES
    assert DEVICE not in cost.phases
    assert min(*cost.phases.values(), cost.device_ms) > 0
    assert cost.rows == 3


def test_another_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="attention must be"):
        measure_host_rounds("off", Speculation(), 1, 80, rounds=1, warmup=1, attention="flash")


def test_every_phase_of_a_round_inside_a_server_is_timed() -> None:
    cost = measure_plugin_rounds(3, 200, 4, rounds=3, warmup=1)
    assert set(cost.phases) == set(PLUGIN_PHASES)
    assert min(*cost.phases.values(), cost.device_ms) > 0
    assert cost.border_ms == pytest.approx(sum(cost.phases[phase] for phase in BORDER_PHASES))
    assert cost.host_ms == pytest.approx(sum(cost.phases.values()))
    assert cost.border_ms < cost.host_ms
    assert cost.to_json()["host_ms"] == cost.host_ms
