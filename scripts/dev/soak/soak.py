"""Attack the project for minutes; say what was lost, what hung and what leaked. Linux only.

python scripts/dev/soak/soak.py                                     ten minutes of all parts, another seed each time
python scripts/dev/soak/soak.py --minutes 60 --parts kills,clients  longer, some parts
python scripts/dev/soak/soak.py --parts kills --round-seed 123      one round again

Parts: `kills` kills and resumes runs of solve.py; `hostile` searches over hostile servers; `cancels` cancels searches
of the local engine; `clients` storms serve.py. A part draws everything from the seed of its round; only the speed of
the machine differs the next time. The last line is `lost: 0, hung: 0, leaked: 0`; with other counts, the faults and the
seeds that repeat them stand before it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from part_program import PartSettings, RoundReport
from parts import PARTS, PartProcess, PartProgram
from rich.console import Console
from rich.live import Live
from rich.table import Table

KINDS = ("lost", "hung", "leaked")
MAX_SHOWN = 20
"""Faults of one round that are shown; the others are only counted."""


class SoakBoard:
    """The table of all parts, and the counts of faults."""

    def __init__(self, names: Iterable[str]) -> None:
        self.counts = {name: Counter[str]() for name in names}
        self.faults: Counter[str] = Counter()
        self._under_way, self._since = "", 0.0

    def begin(self, name: str) -> None:
        """Shows this part as running. *Mutates* the board."""
        self._under_way, self._since = name, time.monotonic()

    def end(self, name: str, report: RoundReport) -> None:
        """Adds the counts and faults of a round. *Mutates* the board."""
        self._under_way = ""
        self.counts[name] += Counter({"rounds": 1}) + report.counts
        for kind, _ in report.faults():
            self.counts[name][kind] += 1
            self.faults[kind] += 1

    def __rich__(self) -> Table:
        table = Table("part", "rounds", "done", *KINDS, "", box=None, pad_edge=False)
        for name, counts in self.counts.items():
            done = ", ".join(f"{n:,} {what}" for what, n in counts.items() if what not in ("rounds", *KINDS))
            running = f"{time.monotonic() - self._since:.0f} s" if name == self._under_way else ""
            table.add_row(name, str(counts["rounds"]), done, *(str(counts[kind]) for kind in KINDS), running)
        return table

    @property
    def verdict(self) -> str:
        """The last line."""
        return ", ".join(f"{kind}: {self.faults[kind]}" for kind in KINDS)


def soak(programs: Sequence[PartProgram], settings: PartSettings, seeds: Iterable[int], minutes: float) -> int:
    """Runs all parts with each seed, one after the other, until the time is up. Returns the exit code."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    parts = [PartProcess(program, settings) for program in programs]
    board = SoakBoard(part.name for part in parts)

    def end_round(part: PartProcess, report: RoundReport, seed: int) -> None:
        board.end(part.name, report)
        faults = list(report.faults())
        done = ", ".join(f"{n:,} {what}" for what, n in report.counts.items())
        console.print(f"round {seed} {part.name}: {done or 'nothing'}{f', {len(faults)} FAULTS' if faults else ''}")
        for kind, text in faults[:MAX_SHOWN]:
            console.print(f"    {kind}: {text}")
        if faults:
            scale = "" if settings.scale == 1 else f" --scale {settings.scale:g}"
            console.print(f"    again: python scripts/dev/soak/soak.py --parts {part.name} --round-seed {seed}{scale}")

    end = time.monotonic() + 60 * minutes
    with Live(get_renderable=lambda: board, console=console, refresh_per_second=2, transient=True):
        for seed in seeds:
            for part in parts:
                board.begin(part.name)
                end_round(part, part.run_round(seed), seed)
            if time.monotonic() > end:
                break
        for part in parts:
            report = part.close()  # its end counts to the last round
            if any(report.faults()):
                end_round(part, report, seed)
    console.print(board)
    has_faults = bool(board.faults.total())
    if has_faults:
        console.print(f"logs and runs are in {settings.folder}")
    else:
        shutil.rmtree(settings.folder)
    console.print(board.verdict)
    return int(has_faults)


def draw_seeds(seed: int) -> Iterable[int]:
    """Yields seeds of rounds without end."""
    rng = random.Random(seed)
    while True:
        yield rng.randrange(1 << 31)


def main() -> int:
    names = [program.name for program in PARTS]
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--minutes", type=float, default=10.0, help="the last round may take longer")
    top.add_argument("--seed", type=int, help="of the seeds of rounds; drawn and printed without it")
    top.add_argument("--round-seed", type=int, help="runs one round, with this seed")
    top.add_argument("--parts", default=",".join(names), help="some of the parts, with commas")
    top.add_argument("--limit-s", type=float, default=120.0, help="what does not end within this many seconds hangs")
    top.add_argument(
        "--scale", type=float, default=1.0, help="size of a round; 0.1 is a tenth of the searches and clients"
    )
    args = top.parse_args()
    if unknown := set(args.parts.split(",")) - set(names):
        top.error(f"--parts: there is no {', '.join(sorted(unknown))}; choose some of {', '.join(names)}")
    for name in ("minutes", "limit_s", "scale"):
        if not getattr(args, name) > 0:
            top.error(f"--{name.replace('_', '-')} must be above 0, got {getattr(args, name):g}")
    if not Path("/proc/self/fd").is_dir():
        top.error("this machine has no /proc, from which files, threads and processes are counted")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # stuck programs are aborted
    seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    print(f"seed {seed}" if args.round_seed is None else f"round {args.round_seed}", flush=True)
    seeds = draw_seeds(seed) if args.round_seed is None else [args.round_seed]
    settings = PartSettings(Path(tempfile.mkdtemp(prefix="soak-")), args.limit_s, args.scale)
    programs = [program for program in PARTS if program.name in args.parts.split(",")]
    return soak(programs, settings, seeds, args.minutes)


if __name__ == "__main__":
    sys.exit(main())
