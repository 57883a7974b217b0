"""Part a4: what the host of this machine does in a round, with a model that is free."""

from __future__ import annotations

from decoding.round import Speculation
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from reason.bench.gpu_report.rig import NO_TIME, ReportRig
from reason.bench.host_round import measure_host_rounds

BARS_MS = {1: 0.25, 16: 0.5, 64: 1.0}
"""Most milliseconds that the host keeps a GPU waiting, by branches."""
_LATE_PHASE = "observe"
"""What the drafter learns from a round is needed by the next draft only."""


def measure_host(rig: ReportRig) -> None:
    """Adds a line per number of branches, plain and with drafts of STAND."""
    for branches, bar in rig.pick(BARS_MS, {2: 1.0}).items():
        for name in ("plain", "stand, 4 nodes"):
            title = f"host's part of a round, {branches} branches, {name}"
            if not rig.has_seconds(rig.pick(4, 0)):
                rig.add_skipped(title, NO_TIME)
                continue
            speculation = Speculation()
            if name != "plain":
                speculation = Speculation(TreeDrafter(Stand()), FixedController(4), Coupled())
            cost = measure_host_rounds(
                name,
                speculation,
                branches,
                rig.pick(2048, 40),
                rounds=rig.pick(40, 2),
                warmup=rig.pick(15, 1),
                attention="segments",
            )
            waited = cost.total_ms - cost.phases[_LATE_PHASE]
            phases = ", ".join(f"{phase} {ms:.2f}" for phase, ms in cost.phases.items())
            rig.add_device_check(
                title, f"{waited:.2f} ms ({phases})", waited <= bar, f"at most {bar:g} ms without {_LATE_PHASE}"
            )
