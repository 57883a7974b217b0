"""Measures speculation: tokens accepted at equal node budgets, and speed relative to plain decoding."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from decoding.round import Speculation
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.template import TemplateController
from decoding.speculation.interfaces import Controller
from reason.bench.drafter_setups import (
    AT_EQUAL_NODES,
    AT_FULL_SPEED,
    NO_COSTS,
    ORACLE,
    DrafterSetup,
    MachineCosts,
    make_throughput,
    measure_costs,
)
from reason.bench.goals import evaluate_goals
from reason.bench.oracle import OracleDrafter
from reason.bench.puppet import Puppet
from reason.bench.speculation_run import AcceptancePoint, SpeculationRun, SpeedRun, run_workload
from reason.bench.tune import static_tree, tune_template
from reason.bench.workload import TASKS, SpeculationTarget, Workload, WorkloadQuestion

PLAIN = Speculation()
TEMPLATE_NODES = 16  # draft nodes of the setup that has a template where the others have the throughput controller
REFERENCES = (ORACLE, "plain")  # not drafter setups; plain against plain shows how steady the machine is
TUNED_NODES = 80  # nodes of a tuned template, as published; more where a node budget is larger
_WARM_UP_NODES = 4

LogLine = Callable[[str], None]


@dataclass(frozen=True)
class SpeculationSettings:
    """Sizes of the benchmark. Numbers of problems are per family.

    drafter_setups, problems, nodes, ..._at_equal_nodes   first part: acceptance
    speed_setups, speed_problems, live, temperatures      second part: speed; `REFERENCES` are valid names too
    repeats                                               of the second part at its first temperature; else one
    tuning_...                                            problems that templates are learned from

    Raises: ValueError for an unknown name.
    """

    drafter_setups: tuple[str, ...] = (*AT_EQUAL_NODES, ORACLE)
    problems: int = 2
    nodes: tuple[int, ...] = (8, 16, 64)
    temperatures_at_equal_nodes: tuple[float, ...] = (1.0,)
    live_at_equal_nodes: int = 16
    speed_setups: tuple[str, ...] = ("stand", "stand_rejection", "token_recycling", "prompt_lookup", "suffix", ORACLE)
    speed_problems: int = 1
    live: tuple[int, ...] = (1, 4, 16, 64)
    temperatures: tuple[float, ...] = (1.0, 0.6, 0.0)
    repeats: int = 2
    trajectories: int = 16
    tuning_problems: int = 1
    tuning_trajectories: int = 16
    tuning_nodes: int = 200
    kv_mib: int = 64
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        known = {"drafter_setups": (*AT_EQUAL_NODES, ORACLE), "speed_setups": (*AT_FULL_SPEED, *REFERENCES)}
        for key, valid in known.items():
            if unknown := sorted(set(getattr(self, key)) - set(valid)):
                raise ValueError(f"{key} must be from {', '.join(valid)}; got {', '.join(unknown)}")


QUICK = SpeculationSettings(
    drafter_setups=("stand_coupled", "stand_rejection", "likely_template", "token_recycling", "prompt_lookup"),
    problems=1,
    nodes=(16,),
    speed_setups=("stand", "token_recycling", "prompt_lookup", ORACLE),
    live=(1, 16),
    temperatures=(1.0,),
    repeats=1,
    trajectories=8,
    tuning_trajectories=4,
)
"""Sizes for a test of about two minutes, too small for conclusions."""


@dataclass
class SpeculationBench:
    """Runs the benchmark with a loaded target.

    Templates are learned when first needed and stored in `folder`; those of other models or sizes are learned again.
    """

    target: SpeculationTarget
    settings: SpeculationSettings
    folder: Path
    log_line: LogLine = lambda line: None

    def __post_init__(self) -> None:
        make, settings = self.target.make_questions, self.settings
        self.acceptance_questions = make(per_family=settings.problems, split="heldout")
        self.speed_questions = make(per_family=settings.speed_problems, split="heldout")
        self.training_questions = make(per_family=settings.tuning_problems, split="train")

    def measure_parts(self, *, nodes: bool = True, speed: bool = True) -> dict[str, Any]:
        """Runs one part or both; returns plain data for the report and the JSON line."""
        points = self.measure_acceptance() if nodes else []
        speed_runs = self.measure_speed() if speed else []
        # the goals are about solutions of the bundled target, at its own price
        has_goals = self.target.task == TASKS["bundled"] and not isinstance(self.target.backend, Puppet)
        goals = evaluate_goals(points, speed_runs, self.settings.nodes) if has_goals else []
        return {
            "bench": "speculation",
            "settings": asdict(self.settings),
            "task": self.target.task,
            "families": list(dict.fromkeys(question.family for question in self.acceptance_questions)),
            "goals": [goal.to_json() for goal in goals],
            "acceptance": [point.to_json() for point in points],
            "speed": [run.to_json() for run in speed_runs],
        }

    def measure_acceptance(self) -> list[AcceptancePoint]:
        """Measures tokens per forward pass at equal numbers of draft nodes; leaves out templates that have fewer."""
        return [
            point
            for temperature in self.settings.temperatures_at_equal_nodes
            for point in self._acceptance_at(temperature)
        ]

    def measure_speed(self, costs: MachineCosts | None = None) -> list[SpeedRun]:
        """Measures speed relative to plain decoding, which runs before every run; setups are interleaved.

        costs  of the target's rounds; measured where they are not known
        """
        costs = costs or measure_costs(self.target.backend)
        speed_runs = []
        for temperature in self.settings.temperatures:
            # the text of a branch depends on its seed alone, so it may be computed at any number of live branches
            truth = self._run(self._workload(self.speed_questions, temperature), PLAIN, max(self.settings.live))
            for live in self.settings.live:
                speed_runs += self._compare_speed(truth, live, costs)
        return speed_runs

    def _acceptance_at(self, temperature: float) -> list[AcceptancePoint]:
        workload = self._workload(self.acceptance_questions, temperature)
        live = self.settings.live_at_equal_nodes
        plain = self._run(workload, PLAIN, live)
        points = []
        for name in self.settings.drafter_setups:
            setup = AT_EQUAL_NODES.get(name)
            for nodes in self.settings.nodes:
                if setup is None:
                    speculation = _oracle_speculation(plain, FixedController(nodes))
                else:
                    speculation = self._speculation(name, setup, temperature, nodes)
                controller = speculation.controller
                if isinstance(controller, TemplateController) and len(controller.template) < nodes:
                    self.log_line(f"{name} has a template of {len(controller.template)} nodes: it cannot fill {nodes}")
                    continue
                run = self._run(workload, speculation, live, nodes)
                is_exact = setup is None or setup.is_exact
                points.append(
                    AcceptancePoint(name, temperature, nodes, run, run.count_differing(plain) if is_exact else None)
                )
                self.log_line(
                    f"T={temperature:<4g} {nodes:3d} nodes {name:<26} {run.tokens_per_forward:5.2f} tokens/forward"
                    f" {run.seconds:6.1f} s"
                )
        return points

    def _compare_speed(self, truth: SpeculationRun, live: int, costs: MachineCosts) -> list[SpeedRun]:
        workload, temperature = truth.workload, truth.workload.temperature
        speed_runs = [SpeedRun(name, temperature, live) for name in self.settings.speed_setups]
        self._warm_up(speed_runs, truth, live, costs)
        for _ in range(self.settings.repeats if temperature == self.settings.temperatures[0] else 1):
            for speed_run in speed_runs:
                # all of it: a part of a short workload has another share of prompts and of branches that end
                speed_run.plain.append(self._run(workload, PLAIN, live))
                speed_run.runs.append(self._run(workload, self._speed_speculation(speed_run, truth, costs), live))
                run = speed_run.runs[-1]
                if speed_run.setup in REFERENCES or AT_FULL_SPEED[speed_run.setup].is_exact:
                    speed_run.num_differing = (speed_run.num_differing or 0) + run.count_differing(truth)
                self.log_line(
                    f"T={temperature:<4g} {live:3d} live {speed_run.setup:<26} {run.tokens_per_s:7,.0f} tokens/s"
                    f" ({speed_run.speeds[-1]:.2f}x) {run.seconds:6.1f} s"
                )
        return speed_runs

    def _warm_up(self, speed_runs: Sequence[SpeedRun], truth: SpeculationRun, live: int, costs: MachineCosts) -> None:
        # compilation and reading from disk happen in the first run and must not count as anything's speed
        workload = truth.workload
        trajectories = min(2, workload.trajectories)
        short = replace(workload, questions=workload.questions[:1], trajectories=trajectories, max_tokens=8)
        for speed_run in speed_runs:
            speculation = self._speed_speculation(speed_run, truth, costs)
            if not speculation.controller.uses_template:  # those with one always draft; others only where it pays
                speculation = replace(speculation, controller=FixedController(_WARM_UP_NODES))
            self._run(short, speculation, live)

    def _speed_speculation(self, speed_run: SpeedRun, truth: SpeculationRun, costs: MachineCosts) -> Speculation:
        if speed_run.setup == ORACLE:
            return _oracle_speculation(truth, make_throughput(costs))
        if speed_run.setup in REFERENCES:
            return PLAIN
        setup = AT_FULL_SPEED[speed_run.setup]
        return self._speculation(speed_run.setup, setup, speed_run.temperature, TEMPLATE_NODES, costs)

    def _speculation(
        self, name: str, setup: DrafterSetup, temperature: float, nodes: int, costs: MachineCosts = NO_COSTS
    ) -> Speculation:
        template = self._template(name, setup, temperature) if setup.learns_template else None
        return setup.make_speculation(nodes=nodes, template=template, costs=costs)

    def _template(self, name: str, setup: DrafterSetup, temperature: float) -> Path:
        # the same setup under two names shares one template
        known = next((other for other, same in AT_EQUAL_NODES.items() if same == setup), name)
        file = self.folder / f"{known}_{temperature:g}.json"
        settings = self.settings
        workload = replace(
            self._workload(self.training_questions, temperature), trajectories=settings.tuning_trajectories
        )
        about: dict[str, Any] = {
            "drafter_setup": known,
            "temperature": temperature,
            "task": self.target.task,
            "start": settings.tuning_nodes,
            "keep": max(TUNED_NODES, *settings.nodes),
            "problems": len(self.training_questions),
            "trajectories": workload.trajectories,
            "max_tokens": workload.max_tokens,
        }
        # the file may be of another model, or of other sizes
        if not file.exists() or json.loads(file.read_text(encoding="utf-8")).get("about") != about:
            start = static_tree(settings.tuning_nodes)
            tuned = tune_template(
                self.target, workload, setup.make_drafter(), setup.rule, start, keep=about["keep"],
                live=settings.live_at_equal_nodes, kv_mib=settings.kv_mib,
            )  # fmt: skip
            file.write_text(json.dumps(tuned.to_json(about)) + "\n", encoding="utf-8")
            self.log_line(
                f"T={temperature:<4g} template of {known} learned, {sum(tuned.counts)} accepted nodes counted"
            )
        return file

    def _run(self, workload: Workload, speculation: Speculation, live: int, nodes: int = 0) -> SpeculationRun:
        return run_workload(self.target, workload, speculation, live=live, nodes=nodes, kv_mib=self.settings.kv_mib)

    def _workload(self, questions: tuple[WorkloadQuestion, ...], temperature: float) -> Workload:
        max_tokens = self.settings.max_tokens or self.target.max_tokens
        return Workload(questions, self.settings.trajectories, temperature, max_tokens)


def _oracle_speculation(truth: SpeculationRun, controller: Controller) -> Speculation:
    """Returns a drafter that knows all outputs of `truth`."""
    texts = {
        (request.group, request.seed): request.prefix + output
        for request, output in zip(truth.workload.requests(), truth.outputs, strict=True)
    }
    return Speculation(OracleDrafter(texts), controller, Coupled())
