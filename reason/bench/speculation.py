"""The speculation benchmark: tokens accepted at equal node budgets, then speed relative to plain decoding."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from decoding.round import Speculation
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.controllers.fixed import Fixed
from decoding.speculation.controllers.warmup_profile import rehearse
from decoding.speculation.interfaces import Controller, RoundCost
from reason.bench.drafter_setups import AT_EQUAL_NODES, AT_FULL_SPEED, ORACLE, Contender, throughput
from reason.bench.goals import bars
from reason.bench.oracle import Oracle
from reason.bench.points import Point, Race
from reason.bench.speculation_run import Run, run
from reason.bench.trees import static_tree
from reason.bench.tune import tune
from reason.bench.workload import Question, Target, Workload, questions

PLAIN = Speculation()
TEMPLATE_NODES = 16  # of the contender that has a template where the others have the throughput controller
SPECIAL = (ORACLE, "plain")  # racers that are no contenders; plain against plain shows how steady the machine is
KEPT = 80  # places of a template that are kept, as published

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What is run. Problems are counted for each family.

    contenders, problems, nodes, ..._at_equal_nodes   the first part: acceptance
    racers, speed_problems, live, temperatures        the second: speed; `SPECIAL` ones race too
    repeats                                           of the second at its first temperature; once at the others
    tuning_...                                        what templates are learned from

    Raises: ValueError for a name that nobody has.
    """

    contenders: tuple[str, ...] = (*AT_EQUAL_NODES, ORACLE)
    problems: int = 2
    nodes: tuple[int, ...] = (8, 16, 64)
    temperatures_at_equal_nodes: tuple[float, ...] = (1.0,)
    live_at_equal_nodes: int = 16
    racers: tuple[str, ...] = ("stand", "stand_rejection", "token_recycling", "prompt_lookup", "suffix", ORACLE)
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
        known = {"contenders": (*AT_EQUAL_NODES, ORACLE), "racers": (*AT_FULL_SPEED, *SPECIAL)}
        for key, valid in known.items():
            if unknown := sorted(set(getattr(self, key)) - set(valid)):
                raise ValueError(f"{key} must be from {', '.join(valid)}; got {', '.join(unknown)}")


QUICK = Settings(
    contenders=("stand_coupled", "stand_rejection", "likely_template", "token_recycling", "prompt_lookup"),
    problems=1,
    nodes=(16,),
    racers=("stand", "token_recycling", "prompt_lookup", ORACLE),
    live=(1, 16),
    temperatures=(1.0,),
    repeats=1,
    trajectories=8,
    tuning_trajectories=4,
)
"""A look in about two minutes, from which nothing follows."""


@dataclass
class Bench:
    """A loaded target and what to run with it. Templates are learned when first needed and kept in `folder`."""

    target: Target
    settings: Settings
    folder: Path
    say: Say = lambda line: None

    def __post_init__(self) -> None:
        ask, settings = self.target.prompt, self.settings
        self.accept = questions(ask, per_family=settings.problems, split="heldout")
        self.speed_of = questions(ask, per_family=settings.speed_problems, split="heldout")
        self.train = questions(ask, per_family=settings.tuning_problems, split="train")

    def result(self, *, nodes: bool = True, speed: bool = True) -> dict[str, Any]:
        """Runs one part or both: plain data for reports and the JSON line."""
        points = self.acceptance() if nodes else []
        races = self.speed() if speed else []
        return {
            "bench": "speculation",
            "settings": asdict(self.settings),
            "families": list(dict.fromkeys(question.family for question in self.accept)),
            "bars": [bar.as_dict() for bar in bars(points, races, self.settings.nodes)],
            "acceptance": [point.as_dict() for point in points],
            "speed": [race.as_dict() for race in races],
        }

    def acceptance(self) -> list[Point]:
        """Tokens per forward at equal numbers of draft nodes."""
        return [
            point
            for temperature in self.settings.temperatures_at_equal_nodes
            for point in self._acceptance_at(temperature)
        ]

    def speed(self) -> list[Race]:
        """Speed beside plain decoding, which runs before each of them; all run once before any runs again."""
        costs = rehearse(self.target.backend)
        races = []
        for temperature in self.settings.temperatures:
            # What a branch says depends on its seed alone, not on its company: the fastest way to know it will do.
            truth = self._run(self._work(self.speed_of, temperature), PLAIN, max(self.settings.live))
            for live in self.settings.live:
                races += self._race(truth, live, costs)
        return races

    def _acceptance_at(self, temperature: float) -> list[Point]:
        work = self._work(self.accept, temperature)
        live = self.settings.live_at_equal_nodes
        plain = self._run(work, PLAIN, live)
        points = []
        for name in self.settings.contenders:
            contender = AT_EQUAL_NODES.get(name)
            for nodes in self.settings.nodes:
                if contender is None:
                    parts = _oracle(plain, Fixed(nodes))
                else:
                    parts = self._parts(name, contender, temperature, nodes)
                done = self._run(work, parts, live, nodes)
                exact = contender is None or contender.exact
                points.append(Point(name, temperature, nodes, done, done.differing(plain) if exact else None))
                self.say(
                    f"T={temperature:<4g} {nodes:3d} nodes {name:<26} {done.tokens_per_forward:5.2f} tokens/forward"
                    f" {done.seconds:6.1f} s"
                )
        return points

    def _race(self, truth: Run, live: int, costs: Sequence[RoundCost]) -> list[Race]:
        work, temperature = truth.work, truth.work.temperature
        races = [Race(name, temperature, live) for name in self.settings.racers]
        self._warm_up(races, truth, live, costs)
        # Plain decoding learns nothing, so a part of the work tells its rate, if that keeps as many branches live.
        part = replace(work, trajectories=work.trajectories // 4) if live <= work.trajectories // 4 else work
        for _ in range(self.settings.repeats if temperature == self.settings.temperatures[0] else 1):
            for race in races:
                race.plain.append(self._run(part, PLAIN, live))
                race.runs.append(self._run(work, self._racer(race, truth, costs), live))
                if race.contender in SPECIAL or AT_FULL_SPEED[race.contender].exact:
                    race.differing = (race.differing or 0) + race.runs[-1].differing(truth)
                self.say(
                    f"T={temperature:<4g} {live:3d} live {race.contender:<26} {race.runs[-1].rate:7,.0f} tokens/s"
                    f" ({race.speeds[-1]:.2f}x) {race.runs[-1].seconds:6.1f} s"
                )
        return races

    def _warm_up(self, races: Sequence[Race], truth: Run, live: int, costs: Sequence[RoundCost]) -> None:
        """What runs for the first time is compiled or read from disk; that is nobody's speed."""
        work = truth.work
        short = replace(work, questions=work.questions[:1], trajectories=min(2, work.trajectories), max_tokens=8)
        for race in races:
            self._run(short, self._racer(race, truth, costs), live)

    def _racer(self, race: Race, truth: Run, costs: Sequence[RoundCost]) -> Speculation:
        if race.contender == ORACLE:
            return _oracle(truth, throughput(costs))
        if race.contender in SPECIAL:
            return PLAIN
        contender = AT_FULL_SPEED[race.contender]
        return self._parts(race.contender, contender, race.temperature, TEMPLATE_NODES, costs)

    def _parts(
        self, name: str, contender: Contender, temperature: float, nodes: int, costs: Sequence[RoundCost] = ()
    ) -> Speculation:
        template = self._template(name, contender, temperature) if contender.learns_template else None
        return contender.parts(nodes=nodes, template=template, costs=costs)

    def _template(self, name: str, contender: Contender, temperature: float) -> Path:
        # The same drafter under another name needs no template of its own.
        known = next((other for other, same in AT_EQUAL_NODES.items() if same == contender), name)
        file = self.folder / f"{known}_{temperature:g}.json"
        if not file.exists():
            work = replace(self._work(self.train, temperature), trajectories=self.settings.tuning_trajectories)
            live = self.settings.live_at_equal_nodes
            start = static_tree(self.settings.tuning_nodes)
            tuned = tune(self.target, work, contender.drafter(), contender.rule, start, keep=KEPT, live=live)
            about = {"contender": known, "temperature": temperature, "start": len(start), "problems": len(self.train)}
            file.write_text(json.dumps(tuned.as_dict(about)) + "\n", encoding="utf-8")
            self.say(f"T={temperature:<4g} template of {known} learned, {sum(tuned.counts)} accepted nodes counted")
        return file

    def _run(self, work: Workload, parts: Speculation, live: int, nodes: int = 0) -> Run:
        return run(self.target, work, parts, live=live, nodes=nodes, kv_mib=self.settings.kv_mib)

    def _work(self, questions: tuple[Question, ...], temperature: float) -> Workload:
        longest = self.settings.max_tokens or self.target.max_tokens
        return Workload(questions, self.settings.trajectories, temperature, longest)


def _oracle(truth: Run, controller: Controller) -> Speculation:
    """What knows all that was written in `truth`."""
    texts = {
        (request.group, request.seed): request.prefix + output
        for request, output in zip(truth.work.requests(), truth.outputs, strict=True)
    }
    return Speculation(Oracle(texts), controller, Coupled())
