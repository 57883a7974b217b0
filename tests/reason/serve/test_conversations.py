"""A chat's next turn finds the turn before in the prefix cache, and says how much of its prompt that was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reason.serve.presets import load_presets
from reason.serve.service import SearchService
from tests.support.tiny_writer import save_writer
from tests.support.toy_server import running_server, serve_settings

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PRESETS = ["single", "majority-16"]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server with a model that has a chat template."""
    folder = save_writer(tmp_path_factory.mktemp("writer"))
    _add_template(folder)
    model = ["model=hf", f"model.path={folder}", "scorer=none", "speculation=off"]
    service = SearchService(serve_settings(), load_presets(model, PRESETS))
    with running_server(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.mark.parametrize("preset", PRESETS)
def test_next_turn_has_the_turn_before_in_the_cache(preset: str, chat: httpx.Client) -> None:
    talk = [{"role": "user", "content": f"What now, {preset}?"}]
    reply = send(chat, "/v1/chat/completions", {"model": preset, "messages": talk, "max_tokens": 24})
    talk += [
        {"role": "assistant", "content": reply["choices"][0]["message"]["content"]},
        {"role": "user", "content": "And then?"},
    ]
    following = send(chat, "/v1/chat/completions", {"model": preset, "messages": talk, "max_tokens": 24})
    first, second = reply["usage"], following["usage"]
    assert second["prompt_tokens_details"]["cached_tokens"] >= first["prompt_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"] - len("And then?")


def test_same_prompt_again_lacks_only_its_last_token(chat: httpx.Client) -> None:
    body = {"model": "single", "input": "Once more?", "max_output_tokens": 8}
    first, second = (send(chat, "/v1/responses", body)["usage"] for _ in range(2))
    assert first["input_tokens_details"]["cached_tokens"] < second["input_tokens_details"]["cached_tokens"]
    assert second["input_tokens_details"]["cached_tokens"] == second["input_tokens"] - 1


def send(chat: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = chat.post(path, json=body)
    assert reply.status_code == 200, reply.text
    parsed: dict[str, Any] = reply.json()
    return parsed


def _add_template(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": TEMPLATE}))
