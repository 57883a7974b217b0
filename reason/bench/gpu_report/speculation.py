"""Parts b1 and b2: what speculation is worth at the price of a 7B, over texts of the writer and recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from reason.bench.drafter_setups import measure_costs
from reason.bench.gpu_report.bundled import load_puppet
from reason.bench.gpu_report.rig import NO_TIME, ReportRig
from reason.bench.puppet import MINIATURE, find_shape, make_body
from reason.bench.recorded_target import RecordedTarget
from reason.bench.speculation import SpeculationBench, SpeculationSettings
from reason.bench.speculation_run import SpeedRun
from reason.bench.workload import SpeculationTarget

LEAST_SPEED = 0.97
BARS = {1: 2.5, 16: 1.5}
"""Least speed of STAND over plain decoding, by live branches; elsewhere, and of the others, `LEAST_SPEED`."""
RECORDINGS = Path("shared", "data", "traces_gsm8k.jsonl")
"""Where a working copy may have recorded solutions; `--recordings` names another file."""
_KV_MIB = 6144


@dataclass(frozen=True)
class LiveSizes:
    """How many branches decode together, branches of each problem, and the seconds that measuring them takes."""

    live: int
    trajectories: int
    seconds: float


SIZES = (LiveSizes(1, 4, 60), LiveSizes(16, 16, 45), LiveSizes(64, 16, 25), LiveSizes(4, 4, 35))
"""Those with a bar first."""
TINY_SIZES = (LiveSizes(2, 2, 0),)


def measure_puppet(rig: ReportRig) -> None:
    """Adds the speed of every drafter at every number of live branches, and accepted lengths by draft nodes."""
    target, _ = load_puppet(rig)
    drafters = rig.pick(("stand", "suffix", "hybrid"), ("stand",))
    plain_rates: dict[int, float] = {}
    costs = measure_costs(target.backend)
    for sizes in rig.pick(SIZES, TINY_SIZES):
        if not rig.has_seconds(sizes.seconds):
            rig.add_skipped(f"speculation at {sizes.live} live", NO_TIME)
            continue
        for run in _make_bench(rig, target, drafters, sizes).measure_speed(costs):
            bar = BARS.get(sizes.live, LEAST_SPEED) if run.setup == "stand" else LEAST_SPEED
            _add_run(rig, f"{run.setup} at {run.live} live", run, bar)
            plain_rates[run.live] = median(plain.tokens_per_s for plain in run.plain)
    if rig.has_seconds(rig.pick(30, 0)):
        _measure_accepted(rig, target)
    else:
        rig.add_skipped("accepted length by draft nodes", NO_TIME)
    del target
    _measure_invariant(rig, plain_rates)


def _measure_invariant(rig: ReportRig, fast_rates: Mapping[int, float]) -> None:
    """Adds how many texts drafts change with invariant numerics, which must be none, and what these numerics cost."""
    sizes = rig.pick(LiveSizes(16, 16, 60), TINY_SIZES[0])
    name = f"invariant numerics, stand at {sizes.live} live"
    if not rig.has_seconds(sizes.seconds):
        rig.add_skipped(name, NO_TIME)
        return
    target, _ = load_puppet(rig, "invariant")
    (run,) = _make_bench(rig, target, ("stand",), sizes).measure_speed()
    numbers = run.to_json()
    rig.add_check(
        name,
        f"trajectories that differ: {run.num_differing} of {numbers['trajectories']}, {run.speed:.2f}x of plain",
        run.num_differing == 0,
        "no trajectory differs",
        **numbers,
    )
    if sizes.live in fast_rates:
        rate = median(plain.tokens_per_s for plain in run.plain)
        rig.add_figure(
            f"invariant numerics, plain decoding at {sizes.live} live",
            f"{rate:,.0f} tokens/s, {rate / fast_rates[sizes.live]:.2f}x of those of fast numerics",
        )


def _make_bench(
    rig: ReportRig, target: SpeculationTarget, drafters: tuple[str, ...], sizes: LiveSizes, problems: int = 1
) -> SpeculationBench:
    settings = SpeculationSettings(
        drafter_setups=("stand_coupled",),
        problems=1,
        nodes=rig.pick((4, 8, 16, 32), (4,)),
        live_at_equal_nodes=sizes.live,
        speed_setups=drafters,
        speed_problems=problems,
        live=(sizes.live,),
        temperatures=(1.0,),
        repeats=rig.pick(2, 1),
        trajectories=sizes.trajectories,
        kv_mib=rig.pick(_KV_MIB, 32),
        max_tokens=rig.pick(None, 12),
    )
    # no drafter here learns a template, so nothing is written to the folder
    with TemporaryDirectory() as folder:
        return SpeculationBench(target, settings, Path(folder))


def _add_run(rig: ReportRig, name: str, run: SpeedRun, bar: float) -> None:
    numbers = run.to_json()
    value = (
        f"{run.speed:.2f}x of plain ({', '.join(f'{speed:.2f}' for speed in run.speeds)}), "
        f"{numbers['tokens_per_s']:,.0f} tokens/s, {numbers['tokens_per_forward']:.2f} tokens a forward pass with "
        f"{numbers['nodes_per_forward']:.1f} nodes, trajectories that differ: {run.num_differing} of "
        f"{numbers['trajectories']}"
    )
    rig.add_device_check(name, value, run.speed >= bar, f"at least {bar:g}x", **numbers)


def _measure_accepted(rig: ReportRig, target: SpeculationTarget) -> None:
    sizes = rig.pick(LiveSizes(16, 16, 0), TINY_SIZES[0])
    for point in _make_bench(rig, target, ("stand",), sizes).measure_acceptance():
        numbers = point.to_json()
        rig.add_figure(
            f"accepted with {point.nodes} nodes, {point.setup}",
            f"{numbers['tokens_per_forward']:.2f} tokens a forward pass, "
            f"trajectories that differ: {point.num_differing} of {numbers['trajectories']}",
            **numbers,
        )


def measure_recordings(rig: ReportRig) -> None:
    """Adds the speed over recorded solutions, teacher-forced: a lower bound, since their noise is not known."""
    file = rig.settings.recordings or rig.settings.root / RECORDINGS
    if not file.is_file():
        rig.add_skipped("recorded solutions", f"there is no {RECORDINGS}; --recordings names another file")
        return
    shape = rig.pick(find_shape("qwen2.5-7b"), replace(MINIATURE, vocab_size=20_000))
    body = make_body(shape, device=str(rig.device), dtype=str(rig.dtype).removeprefix("torch."))
    sizes = (LiveSizes(1, 4, 35), LiveSizes(16, 4, 15))
    for one, problems in rig.pick(tuple(zip(sizes, (2, 4), strict=True)), ((TINY_SIZES[0], 1),)):
        if not rig.has_seconds(one.seconds):
            rig.add_skipped(f"recorded solutions at {one.live} live", NO_TIME)
            continue
        target = RecordedTarget.read(body, file, tokenizer=None, limit=problems)
        drafters = rig.pick(("stand", "suffix"), ("stand",))
        # recordings may have fewer samples of a problem
        fewer = replace(one, trajectories=min(one.trajectories, target.num_samples))
        for run in _make_bench(rig, target, drafters, fewer, problems).measure_speed():
            _add_run(rig, f"recorded solutions, {run.setup} at {run.live} live", run, LEAST_SPEED)
