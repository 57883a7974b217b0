"""The settings with which scripts/solve.py uses what was started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from reason.engines.launcher.settings import Draft, Judge, Listening, Target


def settings_for(sections: Mapping[str, Listening], urls: Mapping[str, Sequence[str]]) -> list[str]:
    """`urls` by name of server; behind a router only the router is asked.

    >>> settings_for({"target": Target(port=1)}, {"target": ["http://h:1"]})
    ['engine=sglang', 'engine.urls=[http://h:1]']
    >>> settings_for({"draft": Draft(port=2, path="hub/small", vocabulary="own")}, {"draft": ["http://h:2"]})[2:]
    ['draft.urls=[http://h:2]', 'draft.path=hub/small', 'draft.vocabulary=own']
    """
    found: list[str] = []
    for name, section in sections.items():
        at = f"[{','.join(urls[name])}]"
        path = [] if not isinstance(section, Target | Draft | Judge) or section.path is None else [section.path]
        if isinstance(section, Target):
            found += [f"model={section.model}"] if section.model != Target.model else []
            found += [f"model.path={one}" for one in path]
            found += ["engine=sglang", f"engine.urls={urls_of('router', urls) or at}"]
        elif isinstance(section, Draft):
            found += [f"router={section.router}", "engine@draft=sglang", f"draft.urls={at}"]
            found += [f"draft.path={one}" for one in path]
            found += [] if section.vocabulary == Draft.vocabulary else [f"draft.vocabulary={section.vocabulary}"]
        elif isinstance(section, Judge):
            found += ["scorer=sglang_prm", f"scorer.format={section.format}", f"scorer.urls={at}"]
            found += [f"scorer.path={one}" for one in path]
    return found


def urls_of(name: str, urls: Mapping[str, Sequence[str]]) -> str:
    """As a list for Hydra; empty if there is no such server."""
    return f"[{','.join(urls[name])}]" if name in urls else ""


def command(settings: Sequence[str]) -> str:
    """To be pasted into a shell.

    >>> command(["engine=sglang", "engine.urls=[http://h:1]"])
    "python scripts/solve.py engine=sglang 'engine.urls=[http://h:1]'"
    """
    return shlex.join(["python", "scripts/solve.py", *settings])
