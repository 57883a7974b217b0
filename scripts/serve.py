"""Serve the models over an OpenAI-compatible API, with a search behind every answer.

python scripts/serve.py                                               the bundled models on http://127.0.0.1:8000/v1
python scripts/serve.py model=qwen2.5-math-7b scorer=qwen_prm         others
python scripts/serve.py serve.port=9000 serve.presets=[best-of-16]    one way to search only
python scripts/serve.py serve.host=0.0.0.0 'serve.api_key=${oc.env:KEY}'   for others, who must know the key

Settings are those of scripts/solve.py, and `serve` (conf/serve.yaml); a preset (conf/preset) is what a request calls
its model.
"""

from __future__ import annotations

import importlib.util
import json
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from reason import ConfigError
from reason.config import compose
from reason.config.errors import refused
from reason.runs.command import ended_well, in_one_sentence, quiet

NEEDS = ("fastapi", "uvicorn", "prometheus_client")


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="serve")
def main(cfg: DictConfig) -> None:
    """Serve; a signal ends it in good order, a wrong setting with one sentence."""
    try:
        with in_one_sentence("serve"):
            serve(compose.resolved(cfg)["serve"], HydraConfig.get().overrides.task)
    except KeyboardInterrupt:
        print("stopped", flush=True)


def serve(given: dict[str, object], overrides: list[str]) -> None:
    """Check the settings, listen, load the models, serve until told to stop."""
    if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the server needs {', '.join(missing)}: pip install 'reason-search[serve]'")
    from reason.serve.presets import offer
    from reason.serve.server import Server, is_loopback
    from reason.serve.service import Service
    from reason.serve.settings import ServeSettings

    try:
        settings = ServeSettings(**given)  # type: ignore[arg-type]  # it checks what it is given
    except (ValueError, TypeError) as error:
        raise ConfigError(refused("serve", error, given)) from error
    service = Service(settings, offer(overrides, settings.presets))
    server = Server(service)
    if settings.api_key is None and not is_loopback(settings.host):
        print(f"serve: whoever can reach {server.url} may use it; serve.api_key=... asks for a key", file=sys.stderr)
    names = service.offer.plan.names
    print(f"loading model {names['model']}, scorer {names['scorer']}, engine {names['engine']} ...", flush=True)
    quiet()
    server.run(ready=lambda: print(greeting(server.url, list(service.offer.presets), settings.api_key), flush=True))


def greeting(url: str, presets: list[str], key: str | None) -> str:
    """Where to point a client, and a command to try."""
    authorization = "" if key is None else '-H "Authorization: Bearer $KEY" '
    question = "What is the remainder when 7^2 is divided by 5?"
    body = json.dumps({"model": presets[0], "messages": [{"role": "user", "content": question}]})
    return (
        f"serving {', '.join(presets)}\n"
        f"base url {url}/v1\n"
        f"try: curl {url}/v1/chat/completions {authorization}-H 'Content-Type: application/json' -d '{body}'"
    )


def program() -> None:
    """Run `main`; settings that Hydra cannot read end without a traceback."""
    with ended_well("serve"):
        main()


if __name__ == "__main__":
    program()
