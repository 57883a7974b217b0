"""Compare step-level routers over their thresholds on the same problems, and write a report with a plot.

python scripts/bench/compare_routers.py --out benchmarks/routers.md             all routers, greedy and at temperature 1
python scripts/bench/compare_routers.py --routers arbitrage entropy --problems 50 --temperatures 1
python scripts/bench/compare_routers.py --race arbitrage-0.2                    its wall time beside target_only's, too

Whatever has the form NAME=VALUE is a setting of scripts/solve.py, for all arms. Every arm is a resumable run in a
folder of its own: started again, the script goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from reason import ConfigError
from reason.bench.arguments import positive
from reason.bench.routing import KNOBS, Routed, Setting, least_seconds, routed
from reason.bench.routing_report import ENDS, Race, draw_curves, report

if TYPE_CHECKING:
    from reason.bench.runs import Arm

# Of the bundled scorers expectation is the better one here: it judges a step whatever stood before.
BUNDLED = ("+task=synthetic_mixed", "task.size={problems}", "scorer=expectation")
COMMON = ("limit={problems}", "concurrency=32")
RATIOS = (4.0, 8.0, 32.0)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("settings", nargs="*", help="settings of scripts/solve.py, for all arms")
    top.add_argument("--routers", nargs="+", choices=sorted(KNOBS), default=list(KNOBS))
    top.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    top.add_argument("--problems", type=positive, default=200)
    top.add_argument("--samples", type=positive, default=4, help="of each problem; one is enough at temperature 0")
    top.add_argument(
        "--ratios",
        nargs="+",
        type=float,
        default=RATIOS,
        help="what a token of the large model costs in the small one's",
    )
    top.add_argument("--race", help="a setting (ROUTER-VALUE) to time beside target_only, speculation off and on")
    top.add_argument("--laps", type=positive, default=3, help="repetitions of the race")
    top.add_argument("--folder", type=Path, default=Path("outputs/routers"), help="where the runs are kept")
    top.add_argument("--out", type=Path, help="write the report here, its plot beside it")
    return top


def settings_of(routers: list[str]) -> list[Setting]:
    """Every value of every router's knob; the two ends are always there."""
    return [
        Setting(router, value) for router in dict.fromkeys((*ENDS, *routers)) for value in KNOBS[router][1] or (None,)
    ]


def named(name: str) -> Setting:
    """`arbitrage-0.2` as a setting. Raises: ConfigError."""
    router, _, value = name.partition("-")
    if router not in KNOBS or bool(value) != bool(KNOBS[router][0]):
        raise ConfigError(f"--race wants ROUTER-VALUE, one of {', '.join(KNOBS)}; got {name!r}")
    try:
        return Setting(router, float(value) if value else None)
    except ValueError:
        raise ConfigError(f"--race={name}: {value!r} is not a number") from None


def race(setting: Setting, arms: dict[str, list[Arm]], laps: int, console: Console) -> Iterator[Race]:
    """Runs the setting and the two models alone, its `arms`, by turns in folders that are thrown away."""
    from reason.bench.runs import run_arm

    settings = [setting, *map(Setting, ENDS)]
    for speculation, three in arms.items():
        ratios, limits = [], []
        for lap in range(laps):
            console.print(f"race, speculation={speculation}, lap {lap + 1} of {laps}", style="bold")
            with tempfile.TemporaryDirectory() as name:
                folders = [Path(name, one.name) for one in settings]
                outcomes = [run_arm(arm, folder, console) for arm, folder in zip(three, folders, strict=True)]
                ours, draft, target = map(routed, settings, outcomes, folders)
            ratios.append(ours.seconds / target.seconds)
            limits.append(least_seconds(ours, draft, target))
        yield Race(setting.name, speculation, ratios, limits)


def main() -> int:
    args = parser().parse_intermixed_args()
    logging.disable(logging.ERROR)  # transformers announces every setting it does not like
    console = Console(stderr=True, highlight=False)
    from reason.bench.engine import machine
    from reason.bench.plots import require_matplotlib
    from reason.bench.runs import check_arms, run_arm

    bundled = () if any(setting.startswith("+task=") for setting in args.settings) else BUNDLED
    common = [setting.format(problems=args.problems) for setting in (*bundled, *COMMON, *args.settings)]

    def arm_of(setting: Setting, temperature: float, speculation: str = "off") -> Arm:
        own = (*common, f"search.sampling.temperature={temperature:g}", f"speculation={speculation}")
        return setting.arm(args.samples if temperature else 1, own)

    plan = [(temperature, setting) for temperature in args.temperatures for setting in settings_of(args.routers)]
    sweeps: dict[float, dict[str, list[Routed]]] = {temperature: {} for temperature in args.temperatures}
    try:
        if args.out:
            require_matplotlib()
        racer = None if args.race is None else named(args.race)
        last = args.temperatures[-1]
        racing: dict[str, list[Arm]] = {}
        if racer is not None:
            racing = {s: [arm_of(one, last, s) for one in (racer, *map(Setting, ENDS))] for s in ("off", "stand")}
        check_arms([arm_of(setting, temperature) for temperature, setting in plan] + [a[0] for a in racing.values()])
        for number, (temperature, setting) in enumerate(plan, 1):
            console.print(f"{number} of {len(plan)}: {setting.name}, T = {temperature:g}", style="bold", markup=False)
            folder = args.folder / f"{setting.name}-T{temperature:g}"
            outcome = run_arm(arm_of(setting, temperature), folder, console)
            sweeps[temperature].setdefault(setting.router, []).append(routed(setting, outcome, folder))
        plot = None if args.out is None else args.out.with_suffix(".png")
        if plot is not None:
            draw_curves(plot, sweeps)
        races = [] if racer is None else list(race(racer, racing, args.laps, console))
    except (ConfigError, ValueError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on where it was (runs are in {args.folder})", markup=False)
        return 130
    text = report(
        sweeps,
        races,
        command=shlex.join(["python", *sys.argv]),
        machine=machine(),
        about=f"{args.problems} problems, each sampled {args.samples} times at temperatures above 0. Means per sample; "
        "intervals are 95 %, by bootstrap over problems. *Large tokens* are what the large model wrote, thrown away or "
        "not; the oracle has both models write everything and is shown with what it kept. *Cost at 1:R*: large tokens "
        "and small ones at 1/R of their price, target_only = 1; the bundled pair's own ratio says little about a pair "
        "of billions of weights, so choose yours. *Area*: mean accuracy over the range of large tokens.",
        ratios=args.ratios,
        plot=plot,
    )
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
