"""`reasoning_effort` chooses a search that the models can run, and a server serves the presets that they can run."""

from __future__ import annotations

import httpx
import pytest

from reason.config.errors import ConfigError
from reason.serve.presets import EFFORTS, load_presets
from search.strategies.self_consistency import SelfConsistency
from tests.support.served_upstream import CHAT, ServedUpstream, upstream_body
from tests.support.toy_server import chat_body, error_of


@pytest.mark.parametrize(("effort", "preset"), [("none", "single"), ("low", "effort-low"), ("medium", "effort-medium")])
def test_effort_is_a_search_in_place_of_the_preset(toy: httpx.Client, effort: str, preset: str) -> None:
    reply = toy.post(CHAT, json=chat_body(reasoning_effort=effort)).json()
    assert (reply["model"], reply["search"]["preset"]) == (preset, preset)


def test_search_settings_apply_to_the_effort(toy: httpx.Client) -> None:
    reply = toy.post(CHAT, json=chat_body(reasoning_effort="medium", search={"n": 3})).json()
    assert reply["search"]["solutions"] == 3


def test_effort_without_a_reward_model_votes(upstream: ServedUpstream) -> None:
    upstream.script({"content": "\\boxed{3}"})
    reply = upstream.client.post(CHAT, json=upstream_body(3, reasoning_effort="high")).json()
    assert reply["search"]["preset"] == "majority-64"
    assert reply["search"]["votes"] == {"3": 3.0}


def test_more_effort_never_has_fewer_solutions() -> None:
    for settings in (["speculation=off"], ["engine=openai", "engine.model=x"]):
        efforts = load_presets(settings, ["majority-16"]).efforts
        widths = [getattr(efforts[name].strategy, "n", 0) for name in EFFORTS]
        assert widths == sorted(widths)
        assert widths[0] == 1


def test_server_without_a_reward_model_serves_what_it_can(caplog: pytest.LogCaptureFixture) -> None:
    catalog = load_presets(["engine=openai", "engine.model=x"], None)
    assert {"single", "majority-16"} <= catalog.presets.keys()
    assert all(isinstance(preset.strategy, SelfConsistency) for preset in catalog.presets.values())
    assert "best-of-16" in caplog.text
    with pytest.raises(ConfigError, match="scorer=none"):
        load_presets(["engine=openai", "engine.model=x"], ["best-of-16"])
    with pytest.raises(ConfigError, match=r"engine\.prefill"):
        load_presets(["engine=openai", "engine.model=x", "engine.prefill=3"], None)


def test_unknown_effort_is_refused_with_the_known_ones(toy: httpx.Client) -> None:
    error = error_of(toy.post(CHAT, json=chat_body(reasoning_effort="extreme")))
    assert error["param"] == "reasoning_effort"
    assert "minimal" in error["message"]
