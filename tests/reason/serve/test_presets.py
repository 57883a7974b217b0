"""A preset is a yaml, all share their models, and what cannot be is said before any is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reason import build
from reason.config.compose import composed, members
from reason.config.errors import ConfigError
from reason.serve import presets
from reason.serve.presets import offer
from reason.serve.settings import ServeSettings
from tests.support.toy_server import SETTINGS


def test_every_preset_is_on_offer_and_is_what_its_name_says() -> None:
    made = offer([], None)
    assert list(made.presets) == members("preset")
    for name, preset in made.presets.items():
        assert name.rpartition("-")[2] == str(getattr(preset.strategy, "n", None))
    assert made.presets["ets-16"].search == "ets"
    assert made.plan.embedder is not None


def test_budget_and_sampling_are_the_servers_to_set() -> None:
    made = offer(["budget.tokens=500", "model.sampling.temperature=0.5"], ["best-of-4"]).presets["best-of-4"]
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
def test_what_cannot_be_is_one_sentence(settings: list[str], names: list[str] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        offer(settings, names)


def test_a_preset_may_not_set_what_all_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(settings: Any, config: str) -> Any:
        return composed([*settings, *(["seed=5"] if "+preset=majority-16" in settings else [])], config)

    monkeypatch.setattr(presets, "composed", other)
    with pytest.raises(ConfigError, match="preset=majority-16 sets seed, which all presets share"):
        offer([], ["best-of-4", "majority-16"])


def test_the_configuration_and_the_settings_agree() -> None:
    config, _ = composed([], "serve")
    assert ServeSettings(**config.pop("serve")).host == "127.0.0.1"
    assert build.check(config, {}).config == config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("host", ""), ("port", -1), ("port", 70000), ("port", "http"), ("api_key", ""), ("api_key", "schlüssel")),
        *(
            ("presets", []),
            ("presets", "best-of-4"),
            ("concurrency", 0),
            ("queue", -1),
            ("timeout", 0),
            ("timeout", "1"),
        ),
        *(("grace", None), ("body_kib", 0), ("keep", 0), ("largest", True)),
    ],
)
def test_a_wrong_setting_of_the_server_names_itself(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} "):
        ServeSettings(**(SETTINGS | {name: value}))


def test_a_folder_is_a_path() -> None:
    assert ServeSettings(**(SETTINGS | {"folder": "x/y"})).folder == Path("x/y")
