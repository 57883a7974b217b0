"""Servers are queried for their models before anything loads, and an error is one sentence about its setting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import reason
from reason import ConfigError
from tests.support.paths import ROOT
from tests.support.scripted_openai_server import ScriptedOpenAIServer

WHOLE = ("engine=openai", "search=self_consistency", "search.n=3")


def loading(server: ScriptedOpenAIServer, *settings: str) -> None:
    reason.load(*WHOLE, f"engine.urls={server.url}", *settings).close()


def test_missing_model_lists_the_offered_ones() -> None:
    server = ScriptedOpenAIServer(models=["toy", "small"])
    with pytest.raises(ConfigError, match=f"^engine.model must be set; {server.url} offers small, toy$"):
        loading(server)
    with pytest.raises(ConfigError, match=r"^engine\.model=toyy is not there; .* offers small, toy$"):
        loading(server, "engine.model=toyy")
    loading(server, "engine.model=toy")
    server.close()


def test_unlisted_model_is_accepted_if_the_server_takes_it() -> None:
    for models in (["toy"], None):
        server = ScriptedOpenAIServer(models=models, any_model=True)
        loading(server, "engine.model=alias")
        server.close()


def test_missing_or_wrong_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptedOpenAIServer(key="sk-right")
    monkeypatch.setenv("A_KEY", "sk-wrong")
    with pytest.raises(ConfigError, match=r"^engine\.api_key: .* asks for a key; take it from the environment"):
        loading(server, "engine.model=toy")
    with pytest.raises(ConfigError, match=r"^engine\.api_key: .* refuses it$"):
        loading(server, "engine.model=toy", "engine.api_key='${oc.env:A_KEY}'")
    monkeypatch.setenv("A_KEY", "sk-right")
    loading(server, "engine.model=toy", "engine.api_key='${oc.env:A_KEY}'")
    server.close()


def test_unreachable_server_is_named() -> None:
    server = ScriptedOpenAIServer()
    server.close()
    with pytest.raises(ConfigError, match=f"^engine.urls: nothing answers at {server.url} "):
        loading(server, "engine.model=toy")


def test_api_key_is_in_no_file_of_a_run(tmp_path: Path) -> None:
    """The whole program: three answers by conversation, rows and settings on disk, resumed."""
    server = ScriptedOpenAIServer(key="sk-secret")
    folder = tmp_path / "run"
    settings = [*WHOLE, f"engine.urls=[{server.url}]", "engine.model=toy", "question=1+1?", f"hydra.run.dir={folder}"]
    done = _solve(*settings, "engine.api_key='${oc.env:A_KEY}'")
    assert done.returncode == 0, done.stderr
    assert "text in, text out: no hidden states" in done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["model"], summary["usage"]["calls"], summary["usage"]["tokens"]) == ("toy", 3, 30)
    assert server.paths == 3 * ["/v1/chat/completions"]
    again = _solve(f"resume={folder}")
    assert again.returncode == 0, again.stderr
    texts = [file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file()]
    assert not any("sk-secret" in text for text in [*texts, done.stdout, done.stderr])
    refused = _solve(*settings[:-1], "engine.api_key=sk-secret", f"hydra.run.dir={tmp_path / 'other'}")
    assert refused.returncode == 2
    assert "engine.api_key must come from the environment" in refused.stderr
    assert not (tmp_path / "other").exists()
    server.close()


def _solve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "solve.py"), *arguments]
    environment = {**os.environ, "A_KEY": "sk-secret", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
