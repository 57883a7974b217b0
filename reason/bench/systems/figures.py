"""Keeps what was measured of systems, and with which command on which machine, in a file that can be committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NOTHING = "Nothing is measured yet."


@dataclass
class SystemFigures:
    """The figures of all systems.

    source   command and machine of all figures that have none of their own
    figures  by name of a system what `measure_row` gave, and its `recordings`
    sources  by name of a system the command and machine of its figures, by the same keys
    """

    source: str = NOTHING
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> SystemFigures:
        """Returns the figures of a file, none where there is no file."""
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else cls()

    def add(self, name: str, measured: Mapping[str, Any], source: str) -> None:
        """Replaces the figures of a system that were measured now; its others stay. *Mutates*."""
        # sorted, as they are read again: the page has them in this order
        self.figures[name] = dict(sorted({**self.figures.get(name, {}), **measured}.items()))
        self.sources[name] = {**self.sources.get(name, {}), **dict.fromkeys(measured, source)}
        if {self._source_of(name, key) for name, keys in self.figures.items() for key in keys} == {source}:
            self.source = source
        others = {
            name: {key: text for key, text in by_key.items() if text != self.source}
            for name, by_key in self.sources.items()
        }
        self.sources = {name: by_key for name, by_key in others.items() if by_key}

    def _source_of(self, name: str, key: str) -> str:
        return self.sources.get(name, {}).get(key, self.source)

    def write(self, file: Path) -> None:
        """Writes all figures to a file. *Mutates* the file."""
        content = {key: value for key, value in asdict(self).items() if value or key != "sources"}
        file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def describe_sources(self) -> list[str]:
        """Returns the common source, and each of the others with the systems whose figures it has."""
        others: dict[str, list[str]] = {}
        for name, by_key in sorted(self.sources.items()):
            for source in dict.fromkeys(by_key.values()):
                keys = sorted(key for key, of_key in by_key.items() if of_key == source)
                is_whole = set(keys) == set(self.figures[name])
                others.setdefault(source, []).append(name if is_whole else f"{name} ({', '.join(keys)})")
        return [self.source, *(f"Of {', '.join(names)}: {source}" for source, names in others.items())]
