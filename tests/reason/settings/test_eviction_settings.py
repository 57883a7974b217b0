"""`eviction=...`: what composes, what is refused before a model loads, and that a run and a server name it as lossy."""

from __future__ import annotations

import pytest

from reason.config.compose import compose_settings, list_options
from reason.config.errors import ConfigError
from reason.problem import Problem
from reason.runs.present import format_heading
from reason.serve.presets import load_presets
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings
from reason.tasks.base import Task

POLICIES = [name for name in list_options("eviction") if name != "none"]


def spec_of(*overrides: str) -> SolveSpec:
    return validate_settings(*compose_settings(overrides))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_reaches_the_engine_and_is_named_as_lossy(name: str) -> None:
    spec = spec_of(f"eviction={name}", "eviction.keep_tokens=96", "eviction.every=32")
    assert spec.eviction is not None
    assert (spec.eviction.keep_tokens, spec.eviction.every) == (96, 32)
    metadata = spec.run_metadata(Task("sums", [Problem.from_question("1 + 1?")]), None)
    assert (metadata["eviction"], metadata["lossy"]) == (name, f"eviction={name}")
    assert dict(metadata["settings"])["eviction.keep_tokens"] == 96  # type: ignore[call-overload]
    heading = format_heading(metadata, 1)
    assert f", eviction {name};" in heading
    assert heading.endswith(f"; lossy: eviction={name}")
    assert load_presets([f"eviction={name}"], ["best-of-4"]).lossy_settings == [f"eviction={name}"]


def test_nothing_is_evicted_unless_it_is_set() -> None:
    spec = spec_of()
    assert spec.eviction is None
    assert spec.lossy_settings == ()
    assert "eviction" not in spec.names
    old = {key: value for key, value in spec.config.items() if key != "eviction"}
    assert validate_settings(old, {}).eviction is None  # a run of the last release


def test_two_lossy_settings_are_both_named() -> None:
    lossy = spec_of("eviction=recent", "acceptance=greedy_match").lossy_settings
    assert lossy == ("acceptance=greedy_match", "eviction=recent")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["eviction=recent", "engine=sglang"], "leave eviction=none: servers decide"),
        (["eviction=random", "engine=openai", "search=self_consistency"], "leave eviction=none: servers decide"),
        (["eviction=recent", "eviction.keep_tokens=32"], "eviction.keep_tokens must be an int >= 64, got 32"),
        (["eviction=recent", "eviction.every=0"], "eviction.every must be an int >= 1, got 0"),
        (["eviction=random", "eviction.seed=-1"], "eviction.seed must be an int >= 0, got -1"),
        (["eviction=lazy", "engine.decoder=compiled"], "eviction=lazy reads attention weights"),
        (["eviction=lazy", "engine.attention=segments"], "eviction=lazy reads attention weights"),
        (["eviction=lazy", "eviction.threshold=0"], "eviction.threshold must be in"),
        (["eviction=latest"], "there is no eviction=latest"),
        (["eviction=recent", "eviction._target_=decoding.speculation.acceptance.typical.Typical"], "eviction"),
    ],
)
def test_what_cannot_work_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(*overrides)
