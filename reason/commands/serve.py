"""Serve the models over an OpenAI-compatible API, with a search behind every answer.

reason serve                                               the bundled models on http://127.0.0.1:8000/v1
reason serve model=qwen2.5-math-7b scorer=qwen_prm         other models
reason serve serve.port=9000 serve.presets=[best-of-16]    one way to search only
reason serve serve.host=0.0.0.0 'serve.api_key=${oc.env:KEY}'   reachable from outside, with a key

Settings are those of `reason solve`, and `serve` (conf/serve.yaml). Requests name a preset (conf/preset) as their
model.
"""

from __future__ import annotations

import importlib.util
import json
import sys

import hydra
from omegaconf import DictConfig

from reason import ConfigError
from reason.config import compose
from reason.config.errors import rejected_setting
from reason.models.loading import collect_seldom
from reason.runs.command import handle_termination, report_config_errors

NEEDS = ("fastapi", "uvicorn", "prometheus_client", "jsonschema", "regex")


@hydra.main(version_base="1.3", config_path="pkg://reason.conf", config_name="serve")
def main(cfg: DictConfig) -> None:
    """Serves until a signal; a wrong setting ends the program with one sentence."""
    try:
        with report_config_errors("serve"):
            serve(compose.resolve_settings(cfg)["serve"], compose.list_overrides())
    except KeyboardInterrupt:
        print("stopped", flush=True)


def serve(given: dict[str, object], overrides: list[str]) -> None:
    """Validates the settings, listens, loads the models, serves until a signal."""
    if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the server needs {', '.join(missing)}: pip install 'reason-search[serve]'")
    from reason.serve.presets import load_presets
    from reason.serve.server import SearchServer, is_loopback
    from reason.serve.service import SearchService
    from reason.serve.settings import ServeSettings

    try:
        settings = ServeSettings(**given)  # type: ignore[arg-type]  # it validates its fields
    except (ValueError, TypeError) as error:
        raise ConfigError(rejected_setting("serve", error, given)) from error
    service = SearchService(settings, load_presets(overrides, settings.presets))
    server = SearchServer(service)
    if settings.api_key is None and not is_loopback(settings.host):
        print(f"serve: every client that reaches {server.url} may use it; set serve.api_key", file=sys.stderr)
    names = service.catalog.spec.names
    print(f"loading model {names['model']}, scorer {names['scorer']}, engine {names['engine']} ...", flush=True)
    collect_seldom()
    server.run(ready=lambda: print(greeting(server.url, list(service.catalog.presets), settings.api_key), flush=True))


def greeting(url: str, presets: list[str], key: str | None) -> str:
    """Returns the base URL for clients, and a command to try."""
    authorization = "" if key is None else '-H "Authorization: Bearer $KEY" '
    question = "What is the remainder when 7^2 is divided by 5?"
    body = json.dumps({"model": presets[0], "messages": [{"role": "user", "content": question}]})
    return (
        f"serving {', '.join(presets)}\n"
        f"base url {url}/v1\n"
        f"try: curl {url}/v1/chat/completions {authorization}-H 'Content-Type: application/json' -d '{body}'"
    )


def run_program() -> None:
    """Runs `main`; settings that Hydra cannot read end without a traceback."""
    with handle_termination("serve"):
        main()
