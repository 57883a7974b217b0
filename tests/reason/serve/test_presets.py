"""A preset is a yaml file, all presets share their models, and invalid ones are refused before a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from reason.config.compose import compose_settings, list_options
from reason.config.errors import ConfigError
from reason.serve import presets
from reason.serve.presets import load_presets
from reason.serve.settings import ServeSettings
from reason.settings.validate import validate_settings
from tests.support.lossy_settings import LOSSY
from tests.support.toy_server import SETTINGS, ToySearchService, chat_body, running_server, serve_settings


def test_every_preset_is_offered_and_has_the_search_of_its_name() -> None:
    made = load_presets([], None)
    assert list(made.presets) == list_options("preset")
    for name, preset in made.presets.items():
        width = "1" if name == "single" else name.rpartition("-")[2]
        assert width == str(getattr(preset.strategy, "n", None))
    assert made.presets["ets-16"].search == "ets"
    assert made.spec.embedder is not None


def test_presets_take_budget_and_sampling_of_the_server() -> None:
    made = load_presets(["budget.tokens=500", "model.sampling.temperature=0.5"], ["best-of-4"]).presets["best-of-4"]
    assert made.budget.tokens == 500
    assert made.strategy.sampling.temperature == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "names", "message"),
    [
        (["search=ets"], None, "search is not a setting of the server"),
        (["search.n=4"], None, r"search\.n is not a setting of the server"),
        (["question=x"], None, "question is not a setting of the server"),
        (["+task=aime"], None, "task is not a setting of the server"),
        ([], ["best-of-5"], r"there is no preset=best-of-5 \(did you mean best-of-4\?\)"),
        (["scorer=none"], ["majority-16", "best-of-4"], "preset=best-of-4: search=best_of_n chooses by score"),
        (["budget.tokens=0"], ["best-of-4"], r"preset=best-of-4: budget\.tokens must be"),
    ],
)
def test_invalid_preset_is_refused_in_one_sentence(settings: list[str], names: list[str] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_presets(settings, names)


def test_preset_may_not_set_shared_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(settings: Any, config: str) -> Any:
        return compose_settings([*settings, *(["seed=5"] if "+preset=majority-16" in settings else [])], config)

    monkeypatch.setattr(presets, "compose_settings", other)
    with pytest.raises(ConfigError, match="preset=majority-16 sets seed, which all presets share"):
        load_presets([], ["best-of-4", "majority-16"])


def test_serve_config_matches_serve_settings() -> None:
    config, _ = compose_settings([], "serve")
    assert ServeSettings(**config.pop("serve")).host == "127.0.0.1"
    assert validate_settings(config, {}).config == config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("host", ""), ("port", -1), ("port", 70000), ("port", "http"), ("api_key", ""), ("api_key", "schlüssel")),
        *(
            ("presets", []),
            ("presets", "best-of-4"),
            ("branches", 0),
            ("concurrency", 0),
            ("queue", -1),
            ("timeout", 0),
            ("timeout", "1"),
        ),
        *(("grace", None), ("body_kib", 0), ("keep", 0), ("largest", True)),
        *(("max_connections", 0), ("receive_timeout_s", 0), ("send_timeout_s", None), ("cors_origins", "x")),
        *((name, 1e300) for name in ("timeout", "grace", "receive_timeout_s", "send_timeout_s")),
        *(
            (name, 2**40)
            for name in ("branches", "concurrency", "queue", "body_kib", "largest", "keep", "max_connections")
        ),
    ],
)
def test_wrong_serve_setting_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} "):
        ServeSettings(**(SETTINGS | {name: value}))


def test_serve_folder_is_a_path() -> None:
    assert ServeSettings(**(SETTINGS | {"folder": "x/y"})).folder == Path("x/y")


@pytest.mark.parametrize(
    ("settings", "lossy"),
    [
        ([], []),
        (["speculation=off", "acceptance=greedy_match"], []),
        *(([setting], [setting]) for setting in LOSSY),
    ],
)
def test_lossy_settings_are_in_the_answer_and_in_the_health_report(settings: list[str], lossy: list[str]) -> None:
    catalog = load_presets(settings, ["best-of-4"])
    assert catalog.lossy_settings == lossy
    service = ToySearchService(serve_settings(), catalog)
    with running_server(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert client.get("/health").json()["lossy"] == lossy
        answer = client.post("/v1/chat/completions", json=chat_body()).json()
        assert answer["search"]["lossy"] == lossy
