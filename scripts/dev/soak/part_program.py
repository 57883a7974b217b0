"""What every part of the soak is: a program that runs a round for each seed it reads, and answers one line of JSON."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

ROOT = Path(__file__).resolve().parents[3]
CLOSE_LIMIT_S = 10.0
"""Of `close()`, which is promised within a second; generous, because the machine is busy."""


@dataclass
class RoundReport:
    """What a round did, and its faults, a sentence each.

    counts  what was done, by name
    lost    results that are missing, doubled or different, and requests without a proper answer
    hung    what did not end within its limit
    leaked  processes, files, connections, threads or memory that stayed
    """

    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Reads the answer of a part program. Raises: ValueError or TypeError if it is none."""
        data = json.loads(line)
        return cls(**{**data, "counts": Counter(data["counts"])})

    def to_json(self) -> str:
        """Returns the report as one line."""
        return json.dumps(vars(self))

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yields the kind and the sentence of every fault."""
        for kind in ("lost", "hung", "leaked"):
            yield from ((kind, text) for text in getattr(self, kind))


@dataclass(frozen=True)
class PartSettings:
    """What a part program is started with.

    folder   its own, for runs and logs
    limit_s  seconds that anything it waits for may take; longer is hung
    scale    size of a round: of the numbers of kills, searches and clients, and of the time in which they come
    """

    folder: Path
    limit_s: float
    scale: float = 1.0

    def scale_count(self, count: int) -> int:
        """Returns a number of things in a round of this size, at least 2."""
        return max(2, round(self.scale * count))

    def to_arguments(self) -> list[str]:
        """Returns the arguments of a part program."""
        return [str(self.folder), str(self.limit_s), str(self.scale)]

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Self:
        """Reads the arguments of a part program."""
        folder, limit_s, scale = arguments
        return cls(Path(folder), float(limit_s), float(scale))


class Attack(Protocol):
    """One kind of attack; it lives through many rounds."""

    def run_round(self, seed: int, rng: random.Random) -> RoundReport:
        """Attacks once, and checks what the attacked ones promise. Faults are reported, not raised."""
        ...


def run_part(open_attack: Callable[[PartSettings], AbstractContextManager[Attack]]) -> None:
    """Runs rounds until stdin ends."""
    settings = PartSettings.from_arguments(sys.argv[1:])
    # stdout is for answers alone: what models or libraries print goes to the log
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with open_attack(settings) as attack:
        for line in sys.stdin:
            seed = int(line)
            print(f"--- round {seed}", file=sys.stderr, flush=True)
            report = attack.run_round(seed, random.Random(seed))
            print(report.to_json(), file=answers, flush=True)
