"""Comparison of routers: areas and costs of made-up numbers, and a whole small comparison."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reason.bench.routing import (
    READ_SCORES,
    SWEPT_VALUES,
    RouterPoint,
    RouterSetting,
    cheapest_within,
    compare_areas,
    curve_area,
)
from reason.commands.bench import compare_routers
from tests.support.paths import SCRIPTS

EVERY = np.arange(50)


def point(router: str, accuracy: float, target: float, draft: float = 10.0) -> RouterPoint:
    """A point with equal tokens for each of 50 problems, of which the share `accuracy` is right."""
    right = (accuracy * 50 > EVERY).astype(float)
    same = np.ones(50)
    return RouterPoint(
        RouterSetting(router), right, target * same, draft * same, 0 * same, target * same, 4 * same, same, 1.0
    )


ENDS = (point("draft_only", 0.2, 0), point("target_only", 0.6, 100, draft=0))


def test_curve_area_of_random_routing_is_that_of_the_straight_line() -> None:
    straight = curve_area((), ENDS, EVERY)
    assert straight == pytest.approx(0.4)
    assert curve_area((point("random", 0.4, 50),), ENDS, EVERY) == pytest.approx(straight, abs=1e-6)
    assert curve_area((point("arbitrage", 0.6, 50),), ENDS, EVERY) == pytest.approx(0.5, abs=1e-2)


def test_compare_areas_finds_a_larger_area_with_its_interval() -> None:
    good, lot = (point("arbitrage", 0.6, 50),), (point("random", 0.4, 50),)
    apart = compare_areas(good, lot, ENDS, draws=300)
    assert 0 < apart.low < apart.value < apart.high
    none = compare_areas(lot, lot, ENDS, draws=100)
    assert (none.value, none.low, none.high) == (0, 0, 0)


def test_cheapest_setting_that_reaches_a_goal_is_named() -> None:
    points = [point("entropy", 0.4, 20), point("entropy", 0.6, 50), point("entropy", 0.7, 80)]
    cheapest = cheapest_within(points, 0.5)
    assert cheapest is points[1]
    assert cheapest_within(points, 0.9) is None


def test_cost_is_in_tokens_of_the_large_model() -> None:
    assert point("oracle", 0.5, 100, draft=40).cost(8).mean() == 105


def test_every_swept_value_is_a_valid_setting_of_its_router() -> None:
    from reason.config.compose import compose_settings
    from reason.settings.validate import validate_settings

    for router, (_, values) in SWEPT_VALUES.items():
        for value in values or (None,):
            validate_settings(
                *compose_settings(RouterSetting(router, value).run_spec(2, ("+task=synthetic",)).overrides)
            )


def test_only_routers_that_read_scores_get_the_reward() -> None:
    """Of two settings of one name the later one counts."""
    arms = {
        router: RouterSetting(router, None).run_spec(1, ("scorer=likelihood",)).overrides for router in SWEPT_VALUES
    }
    last = {router: [one for one in overrides if one.startswith("scorer=")][-1] for router, overrides in arms.items()}
    reads = {router for router, scorer in last.items() if scorer == "scorer=likelihood"}
    assert reads == set(READ_SCORES)
    assert all((scorer == "scorer=none") == (router not in reads) for router, scorer in last.items())


def test_report_counts_the_problems_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("reason.bench.runs.execute_run", lambda *_: None)
    monkeypatch.setattr(compare_routers, "load_point", lambda setting, *_: point(setting.router, 0.5, 10))
    monkeypatch.setattr("logging.disable", lambda *_: None)  # other tests are in this process
    command = ["routers", "--problems", "90", "--routers", "cue", "--temperatures", "1", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    assert compare_routers.run_program() == 0
    assert "\n50 problems, each sampled 4 times" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*command, "--temperatures", "0", "0.0"])
    assert compare_routers.run_program() == 2
    assert "--temperatures must differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--ratios", "4", "0"], ["--ratios", "nan"], ["--temperatures", "-1"], ["--temperatures", "inf"]]
)
def test_price_and_temperature_that_no_report_can_have_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        compare_routers.make_parser().parse_args(wrong)
    assert refused.value.code == 2


@pytest.mark.slow
def test_router_comparison_is_made_once_and_again_from_disk(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    command = [
        sys.executable,
        str(SCRIPTS / "bench" / "compare_routers.py"),
        "--problems",
        "3",
        "--samples",
        "2",
    ]
    command += ["--routers", "cue", "--temperatures", "1", "--folder", str(tmp_path / "runs")]
    command += ["--out", str(out), "--timed-setting", "cue-1", "--timing-repeats", "1"]
    first = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert first.returncode == 0, first.stderr
    report = out.read_text()
    assert all(f"| {name} |" in report for name in ("draft_only", "target_only", "cue-1"))
    assert out.with_suffix(".png").stat().st_size > 10_000
    again = subprocess.run(command[:-4], capture_output=True, text=True, timeout=900, check=False)
    assert again.returncode == 0, again.stderr
    assert "[1/3]" not in again.stderr  # every run was read from its folder
    wrong = subprocess.run(
        [*command[:-4], "--timed-setting", "random"], capture_output=True, text=True, timeout=300, check=False
    )
    assert wrong.returncode == 2
    assert "--timed-setting must be ROUTER-VALUE" in wrong.stderr
