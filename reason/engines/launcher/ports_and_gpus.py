"""Ports and GPUs: nobody gets what another one has."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

from reason.config.errors import ConfigError
from reason.engines.launcher.server_command import free_port
from reason.engines.launcher.settings import Listening, Served

SHARE = "--mem-fraction-static"


def check_gpus(sections: Mapping[str, Listening]) -> None:
    """Raises: ConfigError for a GPU given to two servers, unless both say how much of its memory they take."""
    owners: dict[int, str] = {}
    for name, section in sections.items():
        if isinstance(section, Served):
            for gpu in section.gpus:
                owner = owners.setdefault(gpu, name)
                if owner != name and not (_shares(section) and _shares(sections[owner])):
                    raise ConfigError(
                        f"{name}.gpus and {owner}.gpus both have GPU {gpu}; give each its own, or both their share of "
                        f"its memory in flags: {owner}.flags=[{SHARE},0.6] {name}.flags=[{SHARE},0.3]"
                    )


def ports(sections: Mapping[str, Listening], host: str) -> dict[str, list[int]]:
    """For every section as many as it has servers. Raises: ConfigError for one that is taken, or wanted twice."""
    owners: dict[int, str] = {}
    found: dict[str, list[int]] = {}
    for name, section in sections.items():
        count = section.workers if isinstance(section, Served) else 1
        wanted = range(section.port, section.port + count) if section.port else _free(count, owners)
        for port in wanted:
            if port in owners:
                raise ConfigError(f"{name}.port={section.port}: {owners[port]} has port {port}; choose another")
            owners[port] = name
            _check_free(name, host, port)
        found[name] = list(wanted)
    return found


def _shares(section: Listening) -> bool:
    return any(str(flag).split("=")[0] == SHARE for flag in section.flags)


def _free(count: int, taken: Iterable[int]) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < count:
        port = free_port()
        if port not in chosen and port not in taken:
            chosen.append(port)
    return chosen


def _check_free(name: str, host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was stopped just now does not count
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"{name}.port: nothing can listen at {host}:{port} ({error.strerror or error})"
            ) from error
