"""Keeps finished runs of comparisons in one file, so that runs of several sessions and machines add up."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reason.bench.run_line import pack_run, unpack_run
from reason.bench.runs import RunOutcome, RunSpec, plan_run
from reason.config.errors import ConfigError
from reason.runs.json_files import append_json_lines, format_json_line, parse_json, read_whole_lines
from reason.runs.output_folder import OutputFolder

Line = dict[str, Any]
NEEDED = {"search", "width", "seed", "common", "config", "problems", "has_all", "machine", "versions"}


class Ledger:
    """A file of finished runs, a line each, found by the hash of their settings.

    A run with more problems takes the place of one with fewer. Lines of other settings stay and are not read.
    Where files of two machines were joined, the longest of equal runs counts, the first of those.

    accepts_older   whether runs are read whose settings were typed alike and yet differ: defaults have changed since
    """

    def __init__(self, path: Path, *, accepts_older: bool = False) -> None:
        self.path = path
        self.accepts_older = accepts_older
        self._lines = self._read()

    def find(self, spec: RunSpec, num_problems: int) -> RunOutcome | None:
        """Returns the first problems of a run; None if it is not there, or has fewer.

        Raises: ConfigError if the run is there under other defaults, unless those are accepted.
        """
        line = self._find_line(spec)
        if line is None or (line["problems"] < num_problems and not line["has_all"]):
            return None
        try:
            return unpack_run(line, spec, num_problems)
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise ConfigError(f"{self.path}: the line of {spec.label} is broken ({error}); delete it") from error

    def add(self, outcome: RunOutcome, machine: Mapping[str, object], *, has_all: bool) -> None:
        """Adds a finished run of one seed. *Mutates* the file, at once: a killed process leaves the old one.

        machine   that ran it
        has_all   whether the task has no more problems
        """
        origin = {"config": plan_run(outcome.spec).config_hash, "machine": dict(machine), "has_all": has_all}
        line = {**_typed(outcome.spec), **origin, **pack_run(outcome)}
        folder = OutputFolder(self.path.parent)
        folder.make()
        append_json_lines(self.path, [])  # the lock needs a file
        with folder.lock(self.path.name):
            before = self._read()
            same = [one for one in before if one["config"] == line["config"]]
            if all(one["problems"] < line["problems"] for one in same):
                self._lines = [*(one for one in before if one not in same), line]
                folder.replace(self.path.name, b"".join(map(format_json_line, self._lines)))

    def find_other_settings(self, specs: Sequence[RunSpec]) -> list[str]:
        """Returns how the settings of lines differ that are of the same searches and widths, each way once."""
        common = {(spec.search, spec.width): set(_typed(spec)["common"]) for spec in specs}
        pairs = ((set(line["common"]), common.get((line["search"], line["width"]))) for line in self._lines)
        return sorted({" ".join(sorted(one ^ other)) for one, other in pairs if other is not None and one != other})

    def describe_machines(self, specs: Sequence[RunSpec]) -> dict[str, object]:
        """Returns the machines and versions of these runs, several values joined by "and"."""
        lines = [line for spec in specs if (line := self._find_line(spec))]
        known = [line["machine"] | {"git": line["versions"].get("git")} for line in lines]
        values = {key: list(dict.fromkeys(str(one.get(key)) for one in known)) for key in (known[0] if known else ())}
        return {key: " and ".join(some) for key, some in values.items() if some != ["None"]}

    def _find_line(self, spec: RunSpec) -> Line | None:
        config_hash = plan_run(spec).config_hash
        same = [line for line in self._lines if line["config"] == config_hash]
        if not same:
            same = [line for line in self._lines if all(line[key] == value for key, value in _typed(spec).items())]
            if same and not self.accepts_older:
                raise ConfigError(
                    f"{self.path} has {spec.label} with these settings, but other defaults: they have changed since "
                    f"(git {same[0]['versions'].get('git')}); --accept-older reads it even so, or give another file"
                )
        return max(same, key=lambda line: int(line["problems"]), default=None)

    def _read(self) -> list[Line]:
        """Reads all lines. Raises: ConfigError naming the first that is no run; OutputError."""
        lines = []
        for number, data in enumerate(read_whole_lines(self.path) if self.path.exists() else [], 1):
            try:
                line = parse_json(data)
                if missing := NEEDED - set(line):
                    raise ValueError(f"it has no {min(missing)}")
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{self.path}, line {number}: not a finished run ({error}); delete it") from None
            lines.append(line)
        return lines


def _typed(spec: RunSpec) -> Line:
    """Returns the settings of a run as they were typed; the number of problems is no setting of a run."""
    common = [setting for setting in spec.common if not setting.startswith("limit=")]
    return {"search": spec.search, "width": spec.width, "seed": spec.seed, "common": common}
