"""Builds the settings with which scripts/solve.py uses the servers that were started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from reason.engines.launcher.settings import (
    ListenerSettings,
    ModelServerSettings,
    RewardModelSettings,
    SmallModelSettings,
    TargetSettings,
)


def build_solve_settings(sections: Mapping[str, ListenerSettings], urls: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the overrides for servers at `urls`, by name; of servers behind a router only the router is named.

    >>> build_solve_settings({"target": TargetSettings(port=1)}, {"target": ["http://h:1"]})
    ['engine=sglang', 'engine.urls=[http://h:1]']
    >>> small = SmallModelSettings(port=2, path="hub/small", vocabulary="own")
    >>> build_solve_settings({"small": small}, {"small": ["http://h:2"]})[2:]
    ['small.urls=[http://h:2]', 'small.path=hub/small', 'small.vocabulary=own']
    """
    overrides: list[str] = []
    for name, section in sections.items():
        url_list = _format_list(urls[name])
        path = section.path if isinstance(section, ModelServerSettings) else None
        if isinstance(section, TargetSettings):
            front = _format_list(urls.get("router", urls[name]))
            overrides += [f"model={section.model}"] if section.model != TargetSettings.model else []
            overrides += [] if path is None else [f"model.path={path}"]
            overrides += ["engine=sglang", f"engine.urls={front}"]
        elif isinstance(section, SmallModelSettings):
            overrides += [f"router={section.router}", "engine@small=sglang", f"small.urls={url_list}"]
            overrides += [] if path is None else [f"small.path={path}"]
            if section.vocabulary != SmallModelSettings.vocabulary:
                overrides += [f"small.vocabulary={section.vocabulary}"]
        elif isinstance(section, RewardModelSettings):
            overrides += ["scorer=sglang_prm", f"scorer.format={section.format}", f"scorer.urls={url_list}"]
            overrides += [] if path is None else [f"scorer.path={path}"]
    return overrides


def format_solve_command(overrides: Sequence[str], program: str = "reason solve") -> str:
    """Returns the command line, quoted for a shell; `program` is what begins it.

    >>> format_solve_command(["engine=sglang", "engine.urls=[http://h:1]"])
    "reason solve engine=sglang 'engine.urls=[http://h:1]'"
    """
    return f"{program} {shlex.join(overrides)}"


def _format_list(urls: Sequence[str]) -> str:
    return f"[{','.join(urls)}]"
