"""`/v1/models` says what each preset does, in values that a request can send back; presets may score by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest

from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.prompt import Prompt
from reason.serve import presets
from reason.serve.preset_entries import describe_preset
from reason.serve.presets import load_presets
from reason.serve.request import change_strategy
from reason.serve.service import SearchService
from tests.support.judging_server import JudgingServer
from tests.support.served_upstream import CHAT
from tests.support.toy_server import chat_body, running_server, serve_settings


def test_settings_of_an_entry_can_be_sent_back() -> None:
    for preset in load_presets([], None).presets.values():
        settings = dict(describe_preset(preset, created=0)["settings"])
        sampling: Any = settings.pop("sampling")
        sent = {"max_tokens": sampling["max_tokens"], "temperature": sampling["temperature"]}
        assert change_strategy(preset.strategy, settings, sent, largest=10**6) == preset.strategy


def test_needs_are_what_a_server_without_them_does_not_serve() -> None:
    needs = {name: describe_preset(each, created=0) for name, each in load_presets([], None).presets.items()}
    without_scores = load_presets(["scorer=none"], None).presets
    assert {name for name, entry in needs.items() if "reward model" not in entry["needs"]} == without_scores.keys()
    # a chat server whose model is not here continues no text and says nothing of its tokens
    chat = load_presets(["engine=openai", "engine.model=x"], None).presets
    assert {name for name, entry in needs.items() if set(entry["needs"]) <= {"judge"}} == chat.keys()


def test_models_and_efforts_are_described(toy: httpx.Client) -> None:
    body = toy.get("/v1/models").json()
    assert [(entry["id"], entry["width"], entry["scorer"]) for entry in body["data"]] == [
        ("best-of-4", 4, "prm"),
        ("majority-16", 16, None),
    ]
    assert [entry["needs"] for entry in body["data"]] == [["reward model"], []]
    assert all(entry["budget"] == {"calls": 65536} for entry in body["data"])
    assert body["reasoning_efforts"]["low"]["settings"]["stop_error"] == 0.1
    assert toy.get("/v1/models/majority-16").json() == body["data"][1]


def test_confidence_preset_votes_by_confidence_beside_a_reward_model(bundled: tuple[str, SearchService]) -> None:
    with httpx.Client(base_url=bundled[0], timeout=60) as client:
        replies = {
            name: client.post(CHAT, json=chat_body(model=name, search={"n": 4})).json()["search"]
            for name in ("confidence-16", "best-of-4")
        }
    by_confidence = replies["confidence-16"]
    assert by_confidence["usage"]["scored_tokens"] == 0 < replies["best-of-4"]["usage"]["scored_tokens"]
    assert all(0 < weight < 4 for weight in by_confidence["votes"].values())


@pytest.mark.parametrize("given", [["scorer=likelihood"], ["scorer=prm"], ["scorer.kv_mib=64"]])
def test_own_scorer_of_a_preset_stays_whatever_scorer_the_server_has(given: list[str]) -> None:
    made = load_presets(given, ["best-of-4", "confidence-16"])
    assert made.presets["confidence-16"].spec.names["scorer"] == "confidence"
    assert made.presets["best-of-4"].spec.names["scorer"] == made.spec.names["scorer"] != "confidence"


def test_preset_may_not_load_a_scorer_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = compose_settings

    def with_reward_model(settings: Any, config: str) -> Any:
        return compose([*settings, *(["scorer=expectation"] if "+preset=majority-16" in settings else [])], config)

    monkeypatch.setattr(presets, "compose_settings", with_reward_model)
    with pytest.raises(ConfigError, match="preset=majority-16: scorer=expectation loads a model"):
        load_presets([], ["best-of-4", "majority-16"])


@contextmanager
def judging_service(*names: str) -> Iterator[tuple[httpx.Client, JudgingServer]]:
    with closing(JudgingServer()) as judge:
        settings = ["engine=openai", f"engine.urls=[{judge.url}]", "engine.model=toy"]
        service = SearchService(serve_settings(), load_presets(settings, list(names) or None))
        with running_server(service) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield client, judge


def test_judge_preset_asks_the_model_that_solves() -> None:
    with judging_service() as (client, judge):
        assert "judge-16" in [entry["id"] for entry in client.get("/v1/models").json()["data"]]
        body = chat_body(model="judge-16", search={"n": 6})
        search = client.post(CHAT, json=body).json()["search"]
        assert judge.verdicts
        assert search["answer"] == "2"  # the one that the judge finds right
        assert {answer for answer, weight in search["votes"].items() if weight > 0} == {"2"}
        judge.verdicts.clear()
        client.post(CHAT, json=body | {"model": "majority-16"})
        assert not judge.verdicts


def test_model_that_writes_no_words_is_no_judge(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as with a vocabulary without letters
    monkeypatch.setattr(Prompt, "decode", lambda self, tokens: "")
    made = load_presets(["speculation=off"], ["majority-16", "judge-16"])
    with made.spec.load_solver() as solver:
        with pytest.raises(ConfigError, match=r"preset=judge-16: .*cannot write 'yes'"):
            made.without_unfit(solver)
        fitting = load_presets(["speculation=off"], None).without_unfit(solver)
    assert "judge-16" not in fitting.presets
    assert {"confidence-16", "majority-16"} <= fitting.presets.keys()
    assert "judge-16" in caplog.text
