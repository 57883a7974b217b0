"""From settings to commands: what cannot be started is refused before anything is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reason.config.compose import complaints
from reason.config.errors import ConfigError, refused, unknown_key
from reason.engines.launcher import checkpoints
from reason.engines.launcher import ports_and_gpus as places
from reason.engines.launcher import solve_command as line
from reason.engines.launcher.checkpoints import Checkpoints
from reason.engines.launcher.environment import Environment
from reason.engines.launcher.server_command import Launch, RouterLaunch
from reason.engines.launcher.settings import Common, Draft, Judge, Listening, Served, Target

HOME = "serve_models"
SECTIONS: dict[str, type[Listening]] = {"target": Target, "draft": Draft, "prm": Judge, "router": Listening}
TOKENS_ON_CPU = 16_384
OURS = "REASON"  # how the names of our speculation begin
OUR_MODELS = "decoding.sglang_plugin.models"


@dataclass(frozen=True)
class Plan:
    """What is to be started, by name, and the settings with which scripts/solve.py uses it."""

    launches: Mapping[str, Launch | RouterLaunch]
    settings: tuple[str, ...]
    patience_s: int


def check(config: Mapping[str, Any]) -> Plan:
    """Everything that can be known without starting anything; asks the other Python what it has, and binds ports to
    see whether they are free. Raises: ConfigError naming the setting."""
    for key in config.keys() - SECTIONS.keys() - {HOME}:
        raise ConfigError(unknown_key(key, [*SECTIONS, HOME]))
    common: Common = _made(HOME, Common, config[HOME])
    made: dict[str, Listening] = {name: _made(name, kind, config[name]) for name, kind in SECTIONS.items()}
    sections = {name: section for name, section in made.items() if name in common.servers}
    places.check_gpus(sections)
    found = checkpoints.find(sections)
    with complaints(HOME):
        there = Environment.of(common.python, common.packages)
        _check_packages(there, sections, found)
    ports = places.ports(sections, common.host)
    launches: dict[str, list[Launch | RouterLaunch]] = {}
    for name, section in sections.items():
        if isinstance(section, Served):
            launches[name] = _workers(name, section, found, there, common.host, ports[name])
        else:
            workers = tuple(launch.url for launch in launches["target"])
            launches[name] = [_router(section, workers, there, common, ports[name][0])]
    urls = {name: [launch.url for launch in some] for name, some in launches.items()}
    named = {
        f"{name}-{i}" if len(some) > 1 else name: launch
        for name, some in launches.items()
        for i, launch in enumerate(some, 1)
    }
    return Plan(named, tuple(line.settings_for(sections, urls)), common.patience_s)


def _made(key: str, kind: type, given: Any) -> Any:
    try:
        return kind(**given)
    except (ValueError, TypeError) as error:
        raise ConfigError(refused(key, error, given)) from error


def _check_packages(there: Environment, sections: Mapping[str, Listening], found: Checkpoints) -> None:
    """Raises: ValueError naming the setting."""
    served = [section for section in sections.values() if isinstance(section, Served)]
    there.require("sglang", "give the Python of an environment that has it (on a CPU, tests/sglang/setup.sh makes one)")
    if any(not section.gpus for section in served):
        there.require(
            "sgl_kernel", "on a CPU give serve_models.packages=FOLDER with what stands in for it (tests/sglang/shim)"
        )
    ours = [f"speculation={one.speculation}" for one in served if (one.speculation or "").startswith(OURS)]
    ours += [f"{OUR_MODELS}, for prm.format"] if found.headed else []
    if ours:
        there.require("reason-search", f"install this package there with pip install --no-deps: it has {ours[0]}")
    if "router" in sections:
        there.require("sglang-router", "pip install --no-deps sglang-router there, or leave router out")


def _workers(
    name: str, section: Served, found: Checkpoints, there: Environment, host: str, ports: list[int]
) -> list[Launch | RouterLaunch]:
    variables = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}  # saves `reason.engines.sglang_client` a forward pass
    if name == "prm" and found.headed:
        variables = {"SGLANG_EXTERNAL_MODEL_PACKAGE": OUR_MODELS}
    return [
        Launch(
            python=there.python,
            model=found.sources[name],
            host=host,
            port=port,
            gpus=tuple(section.gpus[i * section.tp : (i + 1) * section.tp]),
            flags=(*_flags(section), *map(str, section.flags)),
            packages=there.packages,
            variables=variables,
        )
        for i, port in enumerate(ports)
    ]


def _flags(section: Served) -> list[str]:
    tokens = section.tokens if section.gpus or section.tokens else TOKENS_ON_CPU
    return [
        *(["--tp-size", str(section.tp)] if section.tp > 1 else []),
        *(["--max-total-tokens", str(tokens)] if tokens else []),
        *(["--speculative-algorithm", section.speculation] if section.speculation else []),
    ]


def _router(
    section: Listening, workers: tuple[str, ...], there: Environment, common: Common, port: int
) -> RouterLaunch:
    return RouterLaunch(
        python=there.python,
        workers=workers,
        host=common.host,
        port=port,
        flags=tuple(map(str, section.flags)),
        patience_s=common.patience_s,
    )
