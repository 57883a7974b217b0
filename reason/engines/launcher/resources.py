"""Assigns ports and checks GPUs, so that no two servers use the same one."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

from reason.config.errors import ConfigError
from reason.engines.launcher.server_command import find_free_port
from reason.engines.launcher.settings import ListenerSettings, ModelServerSettings

MEMORY_SHARE_FLAG = "--mem-fraction-static"


def validate_gpus(sections: Mapping[str, ListenerSettings]) -> None:
    """Raises ConfigError for a GPU of two servers, unless both limit their share of its memory."""
    owners: dict[int, str] = {}
    for name, section in sections.items():
        if isinstance(section, ModelServerSettings):
            for gpu in section.gpus:
                owner = owners.setdefault(gpu, name)
                if owner != name and not (_limits_memory(section) and _limits_memory(sections[owner])):
                    flag = MEMORY_SHARE_FLAG
                    raise ConfigError(
                        f"{name}.gpus and {owner}.gpus both have GPU {gpu}; give each its own, or both their share of "
                        f"its memory in flags: {owner}.flags=[{flag},0.6] {name}.flags=[{flag},0.3]"
                    )


def assign_ports(
    sections: Mapping[str, ListenerSettings], host: str, *, must_be_free: bool = True
) -> dict[str, list[int]]:
    """Returns the ports of each section, one for each of its servers.

    Raises: ConfigError for a port that is in use on this machine, or in two sections.
    """
    owners: dict[int, str] = {}
    assigned: dict[str, list[int]] = {}
    for name, section in sections.items():
        count = section.workers if isinstance(section, ModelServerSettings) else 1
        ports = range(section.port, section.port + count) if section.port else _find_free_ports(count, owners)
        for port in ports:
            if port in owners:
                raise ConfigError(f"{name}.port={section.port}: {owners[port]} has port {port}; choose another")
            owners[port] = name
            if must_be_free:
                _require_free(name, host, port)
        assigned[name] = list(ports)
    return assigned


def find_memory_share(section: ListenerSettings) -> float | None:
    """Returns the share of a GPU's memory that the flags of a section give its servers; None where they give none."""
    flags = [str(flag) for flag in section.flags]
    for i, flag in enumerate(flags):
        name, _, value = flag.partition("=")
        if name == MEMORY_SHARE_FLAG:
            try:
                return float(value or flags[i + 1])
            except (ValueError, IndexError):
                return None
    return None


def _limits_memory(section: ListenerSettings) -> bool:
    return any(str(flag).split("=")[0] == MEMORY_SHARE_FLAG for flag in section.flags)


def _find_free_ports(count: int, taken: Iterable[int]) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < count:
        port = find_free_port()
        if port not in chosen and port not in taken:
            chosen.append(port)
    return chosen


def _require_free(name: str, host: str, port: int) -> None:
    with socket.socket() as probe:
        # As servers do: without it, a port whose last server has just stopped would count as in use for a minute.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"{name}.port: nothing can listen at {host}:{port} ({error.strerror or error})"
            ) from error
