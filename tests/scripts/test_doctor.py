"""The doctor reports the installation, names missing parts with a remedy, and sets its exit code."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numba
import pytest

from decoding import compiled
from decoding.cpu_features import multiplies_bfloat16
from reason.commands import doctor
from reason.models import devices
from tests.support.scripted_openai_server import ScriptedOpenAIServer


@contextmanager
def answering(status: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_doctor_reports_a_sound_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.print_report([]) == 0
    out = capsys.readouterr().out
    assert "BROKEN" not in out
    (models,) = [line for line in out.splitlines() if "bundled models" in line]
    assert all(name in models for name in ("draft", "prm", "router", "target", "thinker", "judge_head"))
    assert "settings                    model=bundled, scorer=prm, search=best_of_n, engine=local" in out
    assert out.splitlines()[-1] == "ready: reason solve"


def test_doctor_reports_and_counts_wrong_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.print_report(["model.path=/no/such"]) == 1
    out = capsys.readouterr().out
    assert "BROKEN  settings                    model.path=/no/such: there is no such folder" in out
    assert out.splitlines()[-1] == "1 to repair"


def test_doctor_compiles_ahead_what_the_first_run_would(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Notes of compiled loops are looked for elsewhere, so that none are there yet."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert doctor.print_report([]) == 0
    assert not list(tmp_path.rglob("*.compiled"))
    capsys.readouterr()
    assert doctor.print_report(["--compile"]) == 0
    shown = capsys.readouterr()
    assert "compiling for this machine, once ..." in shown.err
    assert re.search("^ok      compiled loops +on disk", shown.out, re.MULTILINE)
    assert list(tmp_path.rglob("*.compiled"))
    assert doctor.print_report(["--compile"]) == 0
    assert "compiling" not in capsys.readouterr().err


def test_doctor_says_that_nothing_is_compiled_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "explain_no_numba", lambda: "it is not installed")
    finding = doctor.compile_ahead([])
    assert (finding.state, finding.remedy) == (doctor.MISSING, "it is not installed")


def test_doctor_reports_missing_extras_and_broken_dependencies() -> None:
    needed, extra = doctor.check_packages({"": ["torch", "no-such-package"], "plots": ["neither-this-one"]})
    assert (needed.state, extra.state) == ("BROKEN", "missing")
    assert str(needed).startswith(
        "BROKEN  packages                    without no-such-package; pip install reason-search,"
    )
    assert "pip install 'reason-search[plots]'" in str(extra)


def test_doctor_checks_every_extra() -> None:
    assert {"", "serve", "sglang", "dev"} <= set(doctor.required_packages())
    assert "torch" in doctor.required_packages()[""]


def test_doctor_checks_servers() -> None:
    with answering(200) as well, answering(503) as loading:
        states = [doctor.check_server(url).state for url in (well, loading)]
    assert states == ["ok", "BROKEN"]
    gone = doctor.check_server(well)
    assert (gone.state, gone.observation.startswith("nothing answers")) == ("BROKEN", True)
    (settings, *servers) = doctor.check_settings(["engine=sglang", f"engine.urls=[{well}]", "embedder=words"])
    assert (settings.state, [check.subject for check in servers]) == ("ok", [well])


def test_doctor_checks_the_models_of_a_server() -> None:
    server = ScriptedOpenAIServer(models=["toy"])
    settings = ["engine=openai", f"engine.urls=[{server.url}]", "search=self_consistency"]
    checks = {
        name: list(doctor.check_settings([*settings, *more]))[-1]
        for name, more in {"known": ["engine.model=toy"], "unknown": ["engine.model=toyota"], "none": []}.items()
    }
    server.close()
    assert (checks["known"].state, checks["known"].observation) == ("ok", "has toy")
    assert checks["unknown"].observation == f"engine.model=toyota is not there; {server.url} offers toy"
    assert checks["none"].observation == f"engine.model must be set; {server.url} offers toy"


def test_doctor_names_the_dtype_that_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "may_have_gpu", lambda: False)
    assert ("engine.dtype=bfloat16" in str(doctor.check_device())) == multiplies_bfloat16()


def test_doctor_reports_a_missing_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert doctor.check_browser().state == "missing"
