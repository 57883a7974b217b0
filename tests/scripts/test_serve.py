"""The server as a program: it prints its address, answers, refuses wrong settings at once, and stops on a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.paths import SCRIPTS
from tests.support.scripted_openai_server import ScriptedOpenAIServer

SCRIPT = SCRIPTS / "serve.py"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def start(folder: Path, *settings: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), "serve.presets=[best-of-4]", "speculation=off", *settings]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)


def test_serve_prints_its_address_answers_and_stops_at_a_signal(tmp_path: Path) -> None:
    process = start(tmp_path, "serve.port=0", "serve.folder=kept", "serve.api_key=${oc.env:USER_KEY,secret}")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]
    assert lines[0] == "loading model bundled, scorer prm, engine local ...\n"
    assert lines[1] == "serving best-of-4\n"
    address = re.fullmatch(r"base url (http://127\.0\.0\.1:\d+)/v1\n", lines[2])
    assert address is not None
    assert lines[3].startswith(f'try: curl {address[1]}/v1/chat/completions -H "Authorization: Bearer $KEY"')
    body = re.search(r"-d '(.*)'", lines[3])
    assert body is not None
    headers = {"authorization": "Bearer secret", "content-type": "application/json"}
    response = httpx.post(f"{address[1]}/v1/chat/completions", content=body[1], headers=headers, timeout=300)
    assert response.status_code == 200, response.text
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    log, last = out.splitlines()
    assert last == "stopped"
    line = json.loads(log)
    assert line["tree"] == response.headers["x-reason-tree"]
    assert line["request_id"] == response.headers["x-request-id"]
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    assert len(list((tmp_path / "kept" / "pages").iterdir())) == 1


def test_key_of_the_engine_comes_from_the_environment(tmp_path: Path) -> None:
    upstream = ScriptedOpenAIServer(key="sk-secret")
    settings = ["engine=openai", f"engine.urls=[{upstream.url}]", "engine.model=toy", "serve.presets=[majority-16]"]
    command = [sys.executable, str(SCRIPT), *settings, "engine.api_key='${oc.env:A_KEY}'", "serve.port=0"]
    pipe, environment = subprocess.PIPE, ENVIRONMENT | {"A_KEY": "sk-secret"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    upstream.close()
    assert lines[2] == "serving majority-16\n", (lines, err)  # after what it loads, and a warning
    assert "sk-secret" not in "".join([*lines, out, err])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("serve.prot=1", "there is no setting serve.prot (did you mean serve.port?)"),
        ("serve.queue=-1", "serve.queue must be an int >= 0, got -1"),
        ("serve.presets=[ets-17]", "there is no preset=ets-17 (did you mean ets-16?)"),
        ("search.n=3", "search.n is not a setting of the server"),
        ("model.path=/no/such", "preset=best-of-4: model.path=/no/such: there is no such folder"),
    ],
)
def test_serve_reports_wrong_settings_in_one_sentence_with_exit_code_2(
    wrong: str, message: str, tmp_path: Path
) -> None:
    process = start(tmp_path, wrong)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"serve: {message}")
    assert len(err.splitlines()) == 1


def test_serve_reports_a_port_in_use_before_models_are_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(tmp_path, f"serve.port={port}")
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"serve: cannot listen on serve.host=127.0.0.1 serve.port={port}: ")
