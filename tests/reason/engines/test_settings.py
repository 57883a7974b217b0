"""A knob of an engine is one field of its settings class and one line of its yaml; nothing else lists it."""

from __future__ import annotations

import dataclasses
import re
from importlib.resources import files
from typing import Any

import pytest
from omegaconf import OmegaConf

from reason.config.compose import instantiate, list_options, load_option
from reason.engines.base import EngineSettings
from reason.engines.http.settings import ServerSettings
from reason.engines.openai_api.settings import OpenAISettings
from reason.engines.sglang_client.settings import SGLangSettings
from tests.support.paths import ROOT

ENGINES = list_options("engine")


def load_settings(name: str) -> EngineSettings:
    node = {key: value for key, value in load_option("engine", name).items() if key != "defaults"}
    settings = instantiate("engine", node)
    assert isinstance(settings, EngineSettings)
    return settings


@pytest.mark.parametrize("name", ENGINES)
def test_every_field_of_engine_settings_is_in_the_yaml_with_its_default_and_vice_versa(name: str) -> None:
    settings = load_settings(name)
    assert dataclasses.is_dataclass(settings)
    node = OmegaConf.to_container(OmegaConf.create(files("conf").joinpath("engine", f"{name}.yaml").read_text()))
    assert isinstance(node, dict)
    fields = {field.name: field for field in dataclasses.fields(settings)}
    assert set(fields) == set(node) - {"_target_", "defaults"}
    for key, field in fields.items():
        if field.default is not dataclasses.MISSING:
            expected = list(field.default) if isinstance(field.default, tuple) else field.default
            assert node[key] == expected, key


@pytest.mark.parametrize("name", ENGINES)
def test_every_line_of_an_engine_yaml_has_a_comment(name: str) -> None:
    text = files("conf").joinpath("engine", f"{name}.yaml").read_text()
    knobs = [line for line in text.splitlines() if re.match(r"[a-z]\w*:", line) and not line.startswith("defaults:")]
    assert [line for line in knobs if " # " not in line] == []


def test_no_other_module_takes_a_client_knob_as_an_argument() -> None:
    """Settings objects are passed whole, so that a new knob touches no constructor."""
    knobs = {field.name for field in dataclasses.fields(ServerSettings)} - {"urls", "max_in_flight", "cooldown_s"}
    pattern = re.compile(rf"^\s+({'|'.join(sorted(knobs))}):", re.MULTILINE)
    homes = {"reason/engines/http/settings.py", "reason/engines/openai_api/settings.py"}
    listed = [file for file in (ROOT / "reason").rglob("*.py") if pattern.search(file.read_text(encoding="utf-8"))]
    assert {str(file.relative_to(ROOT)) for file in listed} <= homes


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"idle_timeout_s": 0}, "idle_timeout_s must be a number > 0, got 0"),
        ({"request_timeout_s": 1e300}, "request_timeout_s must be a number > 0 and <= 1000000, got 1e\\+300"),
        ({"max_reply_mb": 0.5}, "max_reply_mb must be an int >= 1, got 0.5"),
        ({"max_reply_mb": 4096}, "max_reply_mb must be an int from 1 to 1024, got 4096"),
        *(({"urls": [url]}, "urls must be addresses like") for url in ("http://a b", "http://a..b", "http://a\x01b")),
    ],
)
def test_limits_and_addresses_are_validated(settings: dict[str, Any], error: str) -> None:
    for make in (SGLangSettings, OpenAISettings):
        with pytest.raises(ValueError, match=f"^{error}"):
            make(**({"urls": ["http://host:80"]} | settings))


def test_place_of_a_model_is_an_attribute_of_its_engine_settings() -> None:
    assert {name for name in ENGINES if not load_settings(name).is_remote} == {"local"}
    assert {name for name in ENGINES if load_settings(name).needs_checkpoint} == {"local", "sglang"}
