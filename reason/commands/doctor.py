"""Reports what is installed, the device, the local models and whether servers answer, each with a remedy.

reason doctor                                                    this machine
reason doctor engine=sglang engine.urls=[http://a:30000]         and these servers
reason doctor engine=openai engine.model=NAME                    and whether a server has this model
reason doctor model=qwen2.5-math-7b scorer=qwen_prm              and whether these models are there
reason doctor --compile                                          and compiles what the first run would compile

Settings are those of `reason solve`; no weights are loaded but with --compile, which loads the models, compiles their
loops and times rounds, so that the first run need not. Exit code 1 if something that these settings need is missing or
broken.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from reason.commands import typed

if TYPE_CHECKING:
    from reason.engines.openai_api.settings import OpenAISettings

PACKAGE = "reason-search"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COMPILE = "--compile"
OK, MISSING, BROKEN = "ok", "missing", "BROKEN"
"""States of a finding; `missing` is optional, `BROKEN` is needed."""


@dataclass(frozen=True)
class Finding:
    """One line of the report: the subject, its state, the observation, and what to do."""

    subject: str
    state: str
    observation: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.state:8}{self.subject:28}{self.observation}" + (f"; {self.remedy}" if self.remedy else "")


def required_packages() -> dict[str, list[str]]:
    """Returns names of packages by extra; those under "" are always needed.

    Reads pyproject.toml of the checkout, else the metadata of the installed package.
    """
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.is_file():
        table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        groups = {"": table["dependencies"], **table["optional-dependencies"]}
        return {extra: [package_name(need) for need in needs] for extra, needs in groups.items()}
    by_extra: dict[str, list[str]] = {}
    for need in requires(PACKAGE) or []:
        extra = re.search(r"extra == ['\"](.+?)['\"]", need)
        by_extra.setdefault(extra[1] if extra else "", []).append(package_name(need))
    return by_extra


def package_name(requirement: str) -> str:
    """Returns the package of a requirement.

    >>> package_name("lm-eval[api]>=0.4.8"), package_name("torch>=2.6")
    ('lm-eval', 'torch')
    """
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return name[0]


def check_packages(groups: dict[str, list[str]]) -> Iterator[Finding]:
    """Yields whether the needed packages are installed, then those of every extra."""
    for extra, names in groups.items():
        absent = [name for name in names if installed_version(name) is None]
        subject = f"extra {extra}" if extra else "packages"
        if not absent:
            versions = ", ".join(f"{name} {installed_version(name)}" for name in names)
            yield Finding(subject, OK, versions)
        else:
            command = f"pip install '{PACKAGE}[{extra}]'" if extra else f"pip install {PACKAGE}"
            yield Finding(
                subject,
                MISSING if extra else BROKEN,
                f"without {', '.join(absent)}",
                f"{command}, or in a checkout: pip install -c constraints.txt -e '.{f'[{extra}]' if extra else ''}'",
            )


def installed_version(name: str) -> str | None:
    """Returns the version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_device() -> Finding:
    """Returns the device that runs the models."""
    from reason.engines.cost_store import count_cores
    from reason.models.devices import may_have_gpu

    remedy = "with engine.dtype=bfloat16 large models are fastest here" if _multiplies_bfloat16() else ""
    on_cpu = Finding("device", OK, f"CPU, {count_cores()} cores; no CUDA device", remedy)
    if not may_have_gpu():
        return on_cpu
    import torch  # here: its import takes longer than all the rest

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return Finding("device", OK, f"{torch.cuda.get_device_name()}, {free >> 20:,} of {total >> 20:,} MiB free")
    return on_cpu


def _multiplies_bfloat16() -> bool:
    """Returns whether the CPU multiplies bfloat16. Of Linux alone: to ask as the decoder does takes .5 s."""
    flags = Path("/proc/cpuinfo")
    return flags.exists() and not {"amx_bf16", "avx512_bf16"}.isdisjoint(flags.read_text(encoding="utf-8").split())


def check_browser() -> Finding:
    """Returns whether there is a browser for the tests of the pages; any browser opens the pages themselves."""
    browser = next((name for name in BROWSERS if shutil.which(name)), None)
    if browser is None:
        remedy = "without one the tests of the pages are skipped; install chromium"
        return Finding("browser for page tests", MISSING, "none on the path", remedy)
    return Finding("browser for page tests", OK, browser)


def check_bundled_models() -> Finding:
    """Returns whether the models that come with the package are there."""
    from reason.models.checkpoint import bundled_names

    names = bundled_names()
    if {"target", "draft", "verifier", "prm", "router"} <= set(names):
        return Finding("bundled models", OK, ", ".join(names))
    return Finding("bundled models", BROKEN, ", ".join(names) or "none", "install the package again")


def check_hub_cache() -> Finding:
    """Returns the models in the cache of the Hugging Face hub."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = sorted(repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == "model")
    except CacheNotFound:
        repos = []
    return Finding("downloaded models", OK, ", ".join(repos) or "none", "" if repos else "model=hf takes a folder too")


def check_settings(overrides: Sequence[str]) -> Iterator[Finding]:
    """Yields whether the models, packages and servers of these settings are there."""
    from reason import ConfigError
    from reason.config.compose import compose_settings
    from reason.engines.http.settings import ServerSettings
    from reason.engines.openai_api.settings import OpenAISettings
    from reason.settings.validate import validate_settings

    try:
        config, choices = compose_settings(overrides)
        spec = validate_settings(config, choices)
    except ConfigError as error:
        yield Finding("settings", BROKEN, str(error))
        return
    chosen = ", ".join(f"{key}={choices[key]}" for key in ("model", "scorer", "search", "engine") if key in choices)
    yield Finding("settings", OK, chosen)
    for servers in (spec.engine.settings, spec.scorer.servers):
        if isinstance(servers, OpenAISettings):
            yield from (check_endpoint(servers, url) for url in servers.urls)
        elif isinstance(servers, ServerSettings):
            yield from map(check_server, servers.urls)


def check_server(url: str) -> Finding:
    """Returns whether an SGLang server answers that it is healthy."""
    from reason.engines.http.blocking import fetch_blocking
    from reason.engines.http.errors import TransientError

    try:
        status = fetch_blocking("GET", url, "/health", total_s=5.0).status
    except TransientError as error:
        remedy = f"start one there: {typed.called_as('serve-models')}"
        return Finding(url, BROKEN, f"nothing answers ({error})", remedy)
    if status != 200:
        return Finding(url, BROKEN, f"answers {status} at /health", "see its log; it may still be loading")
    return Finding(url, OK, "answers")


def check_endpoint(servers: OpenAISettings, url: str) -> Finding:
    """Returns whether an OpenAI-compatible server answers, takes the key and has the model."""
    try:
        servers.ping_server(url)
    except (ValueError, ConnectionError) as error:
        return Finding(url, BROKEN, f"engine.{error}")
    return Finding(url, OK, f"has {servers.model}")


def run_checks(overrides: Sequence[str]) -> Iterator[Finding]:
    """Yields all findings; stops at checks that need an absent package."""
    machine = f"{platform.system()} {platform.machine()}"
    yield Finding("python", OK, f"{platform.python_version()} on {machine}; 3.11 or newer is needed")
    needs = list(check_packages(required_packages()))
    yield from needs
    yield check_browser()
    if any(finding.state == BROKEN for finding in needs):
        return
    if importlib.util.find_spec("reason") is None:
        yield Finding("reason", BROKEN, "cannot be imported", "pip install -c constraints.txt -e .")
        return
    yield check_device()
    yield check_bundled_models()
    yield check_hub_cache()
    yield from check_settings(overrides)


def compile_ahead(overrides: Sequence[str]) -> Finding:
    """Loads the models of these settings and closes them: what a first run compiles and times is then on disk."""
    from decoding.compiled import explain_no_numba
    from reason import ConfigError
    from reason.config.compose import compose_settings
    from reason.settings.validate import validate_settings

    if (reason := explain_no_numba()) is not None:
        return Finding("compiled loops", MISSING, "none", reason)
    begin = time.monotonic()
    try:
        with shown_progress():
            validate_settings(*compose_settings(overrides)).load_solver(allocates=True).close()
    except (ConfigError, OSError) as error:
        return Finding("compiled loops", BROKEN, str(error))
    return Finding("compiled loops", OK, f"on disk for these settings, after {time.monotonic() - begin:.0f} s")


@contextmanager
def shown_progress() -> Iterator[None]:
    """Writes the lines about what is loaded and compiled to stderr meanwhile."""
    progress, handler = logging.getLogger("reason.progress"), logging.StreamHandler()
    before = progress.level
    progress.setLevel(logging.INFO)
    progress.addHandler(handler)
    try:
        yield
    finally:
        progress.removeHandler(handler)
        progress.setLevel(before)


def run_program() -> int:
    """Reports on the settings of the command line; returns the exit code."""
    return print_report(sys.argv[1:])


def print_report(arguments: Sequence[str]) -> int:
    """Prints the report on these settings; returns the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(typed.as_called(__doc__ or ""))
        return 0
    overrides = [argument for argument in arguments if argument != COMPILE]
    broken = 0
    for finding in run_checks(overrides):
        print(finding, flush=True)
        broken += finding.state == BROKEN
    if COMPILE in arguments and not broken:
        finding = compile_ahead(overrides)
        print(finding, flush=True)
        broken += finding.state == BROKEN
    print(f"{broken} to repair" if broken else f"ready: {typed.called_as('solve')}")
    return int(broken > 0)
