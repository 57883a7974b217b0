"""Compare step-level routers over their thresholds on the same problems, and write a report with a plot.

reason bench compare_routers --out benchmarks/routers.md             all routers, greedy and at temperature 1
reason bench compare_routers --routers arbitrage entropy --problems 50 --temperatures 1
reason bench compare_routers --timed-setting arbitrage-0.2           its wall time beside target_only's, too

Arguments of the form NAME=VALUE are settings of `reason solve`, for all runs. Every run is resumable and has its own
folder: the same command continues a stopped comparison.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from decoding.validation import MAX_VALUE, is_number
from reason import ConfigError
from reason.bench.arguments import accept_old_flag, describe_length, positive_int, report_path, temperature
from reason.bench.routing import SWEPT_VALUES, RouterPoint, RouterSetting, load_point, minimum_seconds
from reason.bench.routing_report import ENDS, RouterSpeedRun, draw_router_curves, format_report
from reason.commands import typed

if TYPE_CHECKING:
    from reason.bench.runs import RunSpec

# Of the bundled scorers expectation is the better one here: it scores a step independently of the steps before it.
BUNDLED = ("+task=synthetic_mixed", "scorer=expectation")
RATIOS = (4.0, 8.0, 32.0)


def make_parser() -> argparse.ArgumentParser:
    top = typed.make_parser("bench compare_routers", __doc__)
    top.add_argument("settings", nargs="*", help="settings of `reason solve`, for all runs")
    top.add_argument("--routers", nargs="+", choices=sorted(SWEPT_VALUES), default=list(SWEPT_VALUES))
    top.add_argument("--temperatures", nargs="+", type=temperature, default=[0.0, 1.0])
    top.add_argument("--problems", type=positive_int, default=200)
    top.add_argument("--samples", type=positive_int, default=4, help="per problem; at temperature 0 it is always 1")
    top.add_argument(
        "--ratios", nargs="+", type=price, default=RATIOS, help="cost of a large-model token in small-model tokens"
    )
    timed = top.add_argument(
        "--timed-setting", metavar="ROUTER-VALUE", help="time this setting beside target_only, speculation off and on"
    )
    repeats = top.add_argument("--timing-repeats", type=positive_int, default=3)
    top.add_argument("--folder", type=Path, default=Path("outputs/routers"), help="folder of the runs")
    top.add_argument("--out", type=report_path, help="write the report here, its plot beside it")
    accept_old_flag(top, "--race", timed)
    accept_old_flag(top, "--laps", repeats)
    return top


def price(text: str) -> float:
    """A price above 0. Raises: ArgumentTypeError."""
    number = float(text)
    if not is_number(number, low=0, high=MAX_VALUE) or number == 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, at most {MAX_VALUE}, got {text}")
    return number


def common_settings(settings: Sequence[str], problems: int) -> tuple[str, ...]:
    """Returns the settings of all runs, those of the user last."""
    has_task = any(setting.startswith("+task=") for setting in settings)
    bundled = () if has_task else (*BUNDLED, f"task.size={problems}")
    return (*bundled, f"limit={problems}", "concurrency=32", *settings)


def all_settings(routers: list[str]) -> list[RouterSetting]:
    """Returns every value of each router's setting; the two ends are always included."""
    return [
        RouterSetting(router, value)
        for router in dict.fromkeys((*ENDS, *routers))
        for value in SWEPT_VALUES[router][1] or (None,)
    ]


def parse_setting(name: str) -> RouterSetting:
    """Parses `arbitrage-0.2`. Raises: ConfigError."""
    router, _, value = name.partition("-")
    if router not in SWEPT_VALUES or bool(value) != bool(SWEPT_VALUES[router][0]):
        raise ConfigError(f"--timed-setting must be ROUTER-VALUE, one of {', '.join(SWEPT_VALUES)}; got {name!r}")
    try:
        return RouterSetting(router, float(value) if value else None)
    except ValueError:
        raise ConfigError(f"--timed-setting={name}: {value!r} is not a number") from None


def time_setting(
    setting: RouterSetting, specs: dict[str, list[RunSpec]], repeats: int, console: Console
) -> Iterator[RouterSpeedRun]:
    """Runs the setting and each of the two models alone in turn, in temporary folders; `specs` by speculation."""
    from reason.bench.runs import execute_run

    settings = [setting, *map(RouterSetting, ENDS)]
    for speculation, three_specs in specs.items():
        ratios, limits = [], []
        for repeat in range(repeats):
            console.print(f"timing, speculation={speculation}, {repeat + 1} of {repeats}", style="bold")
            with tempfile.TemporaryDirectory() as name:
                folders = [Path(name, each.name) for each in settings]
                outcomes = [
                    execute_run(spec, folder, console) for spec, folder in zip(three_specs, folders, strict=True)
                ]
                ours, draft, target = map(load_point, settings, outcomes, folders)
            ratios.append(ours.seconds / target.seconds)
            limits.append(minimum_seconds(ours, draft, target))
        yield RouterSpeedRun(setting.name, speculation, ratios, limits)


def run_program() -> int:
    args = make_parser().parse_intermixed_args()
    logging.disable(logging.ERROR)  # transformers logs every setting that it ignores
    console = Console(stderr=True, highlight=False)
    from reason.bench.engine import describe_machine
    from reason.bench.plots import require_matplotlib
    from reason.bench.runs import execute_run, require_gold_answers, validate_runs

    common = common_settings(args.settings, args.problems)

    def spec_of(setting: RouterSetting, temperature: float, speculation: str = "off") -> RunSpec:
        settings = (*common, f"search.sampling.temperature={temperature:g}", f"speculation={speculation}")
        return setting.run_spec(args.samples if temperature else 1, settings)

    sweep = [(temperature, setting) for temperature in args.temperatures for setting in all_settings(args.routers)]
    points: dict[float, dict[str, list[RouterPoint]]] = {temperature: {} for temperature in args.temperatures}
    try:
        if len({f"{temperature:g}" for temperature in args.temperatures}) < len(args.temperatures):
            raise ConfigError("--temperatures must differ: each has its runs in folders of its own")
        if args.out:
            require_matplotlib()
        timed = None if args.timed_setting is None else parse_setting(args.timed_setting)
        timed_specs: dict[str, list[RunSpec]] = {}
        if timed is not None:
            timed_specs = {
                speculation: [
                    spec_of(setting, args.temperatures[-1], speculation)
                    for setting in (timed, *map(RouterSetting, ENDS))
                ]
                for speculation in ("off", "stand")
            }
        specs = [spec_of(setting, temperature) for temperature, setting in sweep]
        validate_runs(specs + [three_specs[0] for three_specs in timed_specs.values()])
        require_gold_answers(specs[0])
        console.print(describe_length(settings_of_routers=len(sweep), problems=args.problems))
        for number, (temperature, setting) in enumerate(sweep, 1):
            console.print(f"{number} of {len(sweep)}: {setting.name}, T = {temperature:g}", style="bold", markup=False)
            folder = args.folder / f"{setting.name}-T{temperature:g}"
            outcome = execute_run(specs[number - 1], folder, console)
            points[temperature].setdefault(setting.router, []).append(load_point(setting, outcome, folder))
        plot = None if args.out is None else args.out.with_suffix(".png")
        if plot is not None:
            draw_router_curves(plot, points)
        speed_runs = [] if timed is None else list(time_setting(timed, timed_specs, args.timing_repeats, console))
    except (ConfigError, ValueError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print(f"stopped; the same command continues (runs are in {args.folder})", markup=False)
        return 130
    num_problems = len(next(iter(points[args.temperatures[0]].values()))[0].accuracy)  # a task may have fewer
    text = format_report(
        points,
        speed_runs,
        command=typed.join_command("bench compare_routers"),
        machine=describe_machine(),
        about=f"{num_problems} problems, each sampled {args.samples} times at temperatures above 0. Means per sample; "
        "intervals are 95 %, by bootstrap over problems. *Large tokens* are those of the large model, discarded ones "
        "included; with the oracle both models write everything, and only the steps in the tree count. *Cost at 1:R*: "
        "large tokens, and small ones at 1/R of their price, target_only = 1; the ratio of the bundled pair says "
        "little about models with billions of weights, so choose yours. *Area*: mean accuracy over the range of large "
        "tokens.",
        ratios=args.ratios,
        plot=plot,
    )
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    print(text)
    return 0
