"""Say what is installed, on which device, which models are at hand and which servers answer, and what to do about it.

python scripts/doctor.py                                                    this machine
python scripts/doctor.py engine=sglang engine.urls=[http://a:30000]         and these servers
python scripts/doctor.py engine=openai engine.model=NAME                    and whether a server has this model
python scripts/doctor.py model=qwen2.5-math-7b scorer=qwen_prm              and whether these models are at hand

Settings are those of scripts/solve.py; no weights are loaded. Exit code 1 if something that these settings need is
missing or broken.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reason.engines.openai_api.settings import Endpoints

PACKAGE = "reason-search"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OK, MISSING, BROKEN = "ok", "missing", "BROKEN"
"""`missing` is what one can do without."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, what was seen, and what to do."""

    what: str
    state: str
    seen: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.state:8}{self.what:28}{self.seen}" + (f"; {self.remedy}" if self.remedy else "")


def wanted() -> dict[str, list[str]]:
    """Names of packages by extra; those under "" are always needed. Read from the checkout, else from what is
    installed."""
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if project.is_file():
        table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        groups = {"": table["dependencies"], **table["optional-dependencies"]}
        return {extra: [name_of(need) for need in needs] for extra, needs in groups.items()}
    found: dict[str, list[str]] = {}
    for need in requires(PACKAGE) or []:
        extra = re.search(r"extra == ['\"](.+?)['\"]", need)
        found.setdefault(extra[1] if extra else "", []).append(name_of(need))
    return found


def name_of(requirement: str) -> str:
    """The package that a requirement is about.

    >>> name_of("lm-eval[api]>=0.4.8"), name_of("torch>=2.6")
    ('lm-eval', 'torch')
    """
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return found[0]


def packages(groups: dict[str, list[str]]) -> Iterator[Finding]:
    """What is installed of what is needed, then of every extra."""
    for extra, names in groups.items():
        absent = [name for name in names if installed(name) is None]
        what = f"extra {extra}" if extra else "packages"
        if not absent:
            seen = ", ".join(f"{name} {installed(name)}" for name in names)
            yield Finding(what, OK, seen)
        else:
            command = f"pip install '{PACKAGE}[{extra}]'" if extra else f"pip install {PACKAGE}"
            yield Finding(
                what,
                MISSING if extra else BROKEN,
                f"without {', '.join(absent)}",
                f"{command}, or in a checkout: pip install -c constraints.txt -e '.{f'[{extra}]' if extra else ''}'",
            )


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def device() -> Finding:
    """What runs the models."""
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return Finding("device", OK, f"{torch.cuda.get_device_name()}, {free >> 20:,} of {total >> 20:,} MiB free")
    return Finding("device", OK, f"CPU, {torch.get_num_threads()} threads; no CUDA device")


def browser() -> Finding:
    """Pages open in any browser; their tests want one of these."""
    found = next((name for name in BROWSERS if shutil.which(name)), None)
    if found is None:
        remedy = "without one the tests of the pages are skipped; install chromium"
        return Finding("browser for page tests", MISSING, "none on the path", remedy)
    return Finding("browser for page tests", OK, found)


def bundled() -> Finding:
    """The models that come with the package."""
    from reason.models.checkpoint import bundled_names

    names = bundled_names()
    if {"target", "draft", "verifier", "prm", "router"} <= set(names):
        return Finding("bundled models", OK, ", ".join(names))
    return Finding("bundled models", BROKEN, ", ".join(names) or "none", "install the package again")


def hub_cache() -> Finding:
    """What was downloaded before."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = sorted(repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == "model")
    except CacheNotFound:
        repos = []
    return Finding("downloaded models", OK, ", ".join(repos) or "none", "" if repos else "model=hf takes a folder too")


def settings(overrides: Sequence[str]) -> Iterator[Finding]:
    """Whether what these settings name is there: models, packages and servers."""
    from reason import ConfigError, build
    from reason.config.compose import composed
    from reason.engines.openai_api.settings import Endpoints
    from reason.scorers.sglang_reader import ServedPrm

    try:
        config, choices = composed(overrides)
        plan = build.check(config, choices)
    except ConfigError as error:
        yield Finding("settings", BROKEN, str(error))
        return
    chosen = ", ".join(f"{key}={choices[key]}" for key in ("model", "scorer", "search", "engine") if key in choices)
    yield Finding("settings", OK, chosen)
    for servers in (plan.engine.servers, plan.scorer.servers if isinstance(plan.scorer, ServedPrm) else None):
        if isinstance(servers, Endpoints):
            yield from (endpoint(servers, url) for url in servers.urls)
        elif servers is not None:
            yield from map(server, servers.urls)


def server(url: str) -> Finding:
    """Whether a server answers that it is well."""
    import httpx2

    try:
        status = httpx2.get(f"{url}/health", timeout=5.0).status_code
    except httpx2.TransportError as error:
        remedy = "start one there: python scripts/serve_models.py"
        return Finding(url, BROKEN, f"nothing answers ({error})", remedy)
    if status != 200:
        return Finding(url, BROKEN, f"answers {status} at /health", "see its log; it may still be loading")
    return Finding(url, OK, "answers")


def endpoint(servers: Endpoints, url: str) -> Finding:
    """Whether an OpenAI-compatible server answers, takes the key and has the model."""
    try:
        servers.visit(url)
    except (ValueError, ConnectionError) as error:
        return Finding(url, BROKEN, f"engine.{error}")
    return Finding(url, OK, f"has {servers.model}")


def examine(overrides: Sequence[str]) -> Iterator[Finding]:
    """All findings. What needs a package that is absent is not looked at."""
    yield Finding("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    needs = list(packages(wanted()))
    yield from needs
    yield browser()
    if any(finding.state == BROKEN for finding in needs):
        return
    if importlib.util.find_spec("reason") is None:
        yield Finding("reason", BROKEN, "cannot be imported", "pip install -c constraints.txt -e .")
        return
    yield device()
    yield bundled()
    yield hub_cache()
    yield from settings(overrides)


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    broken = 0
    for finding in examine(arguments):
        print(finding, flush=True)
        broken += finding.state == BROKEN
    print(f"{broken} to mend" if broken else "ready: python scripts/solve.py")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
