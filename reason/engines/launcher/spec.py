"""Turns the settings of scripts/serve_models.py into commands; what cannot work is refused before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from decoding.sglang_plugin import OUR_ALGORITHMS
from reason.config.compose import as_config_error
from reason.config.errors import ConfigError, rejected_setting, unknown_key
from reason.engines.launcher.checkpoints import ServedCheckpoints, find_checkpoints
from reason.engines.launcher.memory_plans import CPU_TOKENS, plan_memory
from reason.engines.launcher.python_environment import PythonEnvironment
from reason.engines.launcher.resources import assign_ports, validate_gpus
from reason.engines.launcher.server_command import RouterCommand, ServerCommand
from reason.engines.launcher.settings import (
    GeneratorSettings,
    LauncherSettings,
    ListenerSettings,
    ModelServerSettings,
    RewardModelSettings,
    SmallModelSettings,
    TargetSettings,
)
from reason.engines.launcher.solve_command import build_solve_settings

SettingsT = TypeVar("SettingsT")

COMMON_SECTION = "serve_models"
SECTIONS: dict[str, type[ListenerSettings]] = {
    "target": TargetSettings,
    "small": SmallModelSettings,
    "prm": RewardModelSettings,
    "router": ListenerSettings,
}
OUR_MODELS = "reason.decoding.sglang_plugin.models"


@dataclass(frozen=True)
class LaunchSpec:
    """The commands to start, by name of server, and the settings with which scripts/solve.py uses the servers.

    memory  a line for each model: what it needs, and what is left for KV
    """

    commands: Mapping[str, ServerCommand | RouterCommand]
    solve_settings: tuple[str, ...]
    memory: tuple[str, ...]
    common: LauncherSettings


def validate_launch(config: Mapping[str, Mapping[str, object]]) -> LaunchSpec:
    """Checks everything that can be checked without starting a server, and returns what to start.

    Runs the other Python to list its packages, and binds ports for a moment. Raises: ConfigError naming the setting.
    """
    for key in config.keys() - SECTIONS.keys() - {COMMON_SECTION}:
        raise ConfigError(unknown_key(key, [*SECTIONS, COMMON_SECTION]))
    common = _build_section(COMMON_SECTION, LauncherSettings, config[COMMON_SECTION])
    all_sections = {name: _build_section(name, kind, config[name]) for name, kind in SECTIONS.items()}
    sections = {name: section for name, section in all_sections.items() if name in common.servers}
    validate_gpus(sections)
    checkpoints = find_checkpoints(sections)
    memory = plan_memory(sections, checkpoints.configs, checkpoints.draft_configs, gpu_gib=common.gpu_gib)
    if common.dry_run:
        environment = PythonEnvironment.unchecked(common.python)
    else:
        with as_config_error(COMMON_SECTION):
            environment = PythonEnvironment.from_settings(common.python, common.packages)
            _require_packages(environment, sections, checkpoints)
    for name, section in sections.items():
        if common.nodes and not section.port:
            raise ConfigError(f"{name}.port=0 is another port on each of serve_models.nodes; give one")
    ports = assign_ports(sections, common.host, must_be_free=not common.dry_run)
    commands: dict[str, list[ServerCommand | RouterCommand]] = {}
    for name, section in sections.items():
        if isinstance(section, ModelServerSettings):
            commands[name] = _build_workers(name, section, checkpoints, environment, common.host, ports[name])
        else:
            workers = tuple(command.url for command in commands["target"])
            commands[name] = [_build_router(section, workers, environment, common, ports[name][0])]
    hosts = common.nodes or [common.host]
    urls = {name: [f"http://{host}:{port}" for host in hosts for port in group] for name, group in ports.items()}
    by_name = {
        f"{name}-{i}" if len(group) > 1 else name: command
        for name, group in commands.items()
        for i, command in enumerate(group, 1)
    }
    return LaunchSpec(by_name, tuple(build_solve_settings(sections, urls)), memory, common)


def _build_section(key: str, kind: type[SettingsT], given: Mapping[str, object]) -> SettingsT:
    try:
        return kind(**given)
    except (ValueError, TypeError) as error:
        raise ConfigError(rejected_setting(key, error, given)) from error


def _require_packages(
    environment: PythonEnvironment, sections: Mapping[str, ListenerSettings], checkpoints: ServedCheckpoints
) -> None:
    """Raises ValueError naming the setting."""
    model_servers = [section for section in sections.values() if isinstance(section, ModelServerSettings)]
    environment.require_package(
        "sglang", "give the Python of an environment that has it (on a CPU, tests/sglang/setup.sh makes one)"
    )
    if any(not section.gpus for section in model_servers):
        environment.require_package(
            "sgl_kernel", "on a CPU give serve_models.packages=cpu_stand_ins, which replaces it"
        )
    algorithms = [section.speculation for section in model_servers if section.speculation]
    ours = [f"speculation={name}" for name in algorithms if name.startswith(OUR_ALGORITHMS)]
    ours += [f"{OUR_MODELS}, for prm.format"] if checkpoints.needs_our_head else []
    if ours:
        environment.require_package(
            "reason-search", f"install this package there with pip install --no-deps: it has {ours[0]}"
        )
    if "router" in sections:
        environment.require_package("sglang-router", "pip install --no-deps sglang-router there, or leave router out")


def _build_workers(
    name: str,
    section: ModelServerSettings,
    checkpoints: ServedCheckpoints,
    environment: PythonEnvironment,
    host: str,
    ports: list[int],
) -> list[ServerCommand | RouterCommand]:
    variables = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}  # saves `reason.engines.sglang_client` a forward pass
    if name == "prm" and checkpoints.needs_our_head:
        variables = {"SGLANG_EXTERNAL_MODEL_PACKAGE": OUR_MODELS}
    flags = _build_flags(section, checkpoints.draft_sources.get(name))
    return [
        ServerCommand(
            python=environment.python,
            model=checkpoints.sources[name],
            host=host,
            port=port,
            gpus=tuple(section.gpus[i * section.tp : (i + 1) * section.tp]),
            flags=(*flags, *map(str, section.flags)),
            packages=environment.packages,
            variables=variables,
        )
        for i, port in enumerate(ports)
    ]


def _build_flags(section: ModelServerSettings, draft_source: str | None) -> list[str]:
    tokens = section.tokens if section.gpus or section.tokens else CPU_TOKENS
    flags = [
        *(["--tp-size", str(section.tp)] if section.tp > 1 else []),
        *(["--max-total-tokens", str(tokens)] if tokens else []),
        *(["--speculative-algorithm", section.speculation] if section.speculation else []),
    ]
    if isinstance(section, GeneratorSettings):
        if section.table is not None:
            # the servers of all machines must see it, so a relative path is this process's
            flags += ["--reason-table", str(Path(section.table).absolute())]
        if section.draft is not None and draft_source is not None:
            flags += ["--reason-draft", section.draft, "--speculative-draft-model-path", draft_source]
    return flags


def _build_router(
    section: ListenerSettings,
    workers: tuple[str, ...],
    environment: PythonEnvironment,
    common: LauncherSettings,
    port: int,
) -> RouterCommand:
    return RouterCommand(
        python=environment.python,
        workers=workers,
        host=common.host,
        port=port,
        flags=tuple(map(str, section.flags)),
        startup_timeout_s=common.startup_timeout_s,
    )
