"""Part b3: whole searches at the price of a 7B: accuracy, KV, seconds."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean

from decoding.core import SamplingParams, Usage
from decoding.engine import LocalEngine
from decoding.stats import EngineStats
from reason.bench.gpu_report.bundled import MAX_TOKENS, PlainTarget, draw_problems, load_puppet
from reason.bench.gpu_report.rig import NO_TIME, ReportRig
from reason.bench.puppet import Puppet
from reason.scorers.embedders.hidden_states import HiddenStateEmbedder
from reason.scorers.formats.token_classification import TokenClassifier
from reason.scorers.prm import PrmScorer
from reason.solver import Solver
from reason.tasks.base import Task
from search.kv import measure_kv
from search.strategies.best_of_n import BestOfN
from search.strategies.ets import Ets
from search.strategies.rebase import Rebase
from search.strategy import Strategy

LEAST_RATIO = 1.8
"""How many times smaller the KV of ETS is than that of REBASE, at least."""
_SEARCH_SECONDS = 25.0


@dataclass(frozen=True)
class MeasuredSearch:
    """A search over all problems: seconds, right answers, and the engine's statistics.

    kept_kv  tokens that the next step of a problem needs, means over steps and problems (see `search.kv`)
    """

    seconds: float
    num_correct: int
    usage: Usage
    kept_kv: float
    stats: EngineStats

    @property
    def resident(self) -> float:
        """KV tokens of a problem, mean over the rounds."""
        return self.stats.resident_rounds / max(1, self.stats.problem_rounds)


def measure_searches(rig: ReportRig) -> None:
    """Adds a line per search, and how much less KV ETS holds than REBASE. The reward model is the bundled one."""
    width = rig.pick(64, 4)
    sampling = SamplingParams(max_tokens=rig.pick(MAX_TOKENS, 24))
    strategies: dict[str, Strategy] = {
        "best_of_n": BestOfN(n=width, agg_strategy="min", sampling=sampling),
        "rebase": Rebase(n=width, sampling=sampling),
        "ets": Ets(n=width, sampling=sampling),
    }
    target, puppet = load_puppet(rig)
    searches: dict[str, MeasuredSearch] = {}
    with closing(draw_problems(rig.pick(8, 2), "heldout")) as task:
        for name, strategy in strategies.items():
            if not rig.has_seconds(rig.pick(_SEARCH_SECONDS, 0)):
                rig.add_skipped(f"{name} with {width} branches", NO_TIME)
                continue
            searches[name] = one = _run_search(rig, strategy, target, puppet, task)
            stats = one.stats
            rig.add_figure(
                f"{name} with {width} branches",
                f"{one.num_correct} of {len(task)} right, {one.seconds:.1f} s, {one.usage.tokens:,} tokens, KV of a "
                f"problem {one.resident:,.0f} tokens, for its next step {one.kept_kv:,.0f}, at most "
                f"{stats.peak_resident_tokens:,} resident where {stats.peak_unshared_tokens:,} were without sharing",
                seconds=one.seconds,
                correct=one.num_correct,
                tokens=one.usage.tokens,
                resident=one.resident,
                kept_kv=one.kept_kv,
                rounds=stats.rounds,
            )
    if {"rebase", "ets"} <= searches.keys():
        ratio = searches["rebase"].kept_kv / max(1.0, searches["ets"].kept_kv)
        rig.add_device_check(
            "KV that ETS keeps for the next step, against REBASE",
            f"{ratio:.2f}x smaller", ratio >= LEAST_RATIO, f"at least {LEAST_RATIO}x",
        )  # fmt: skip


def _run_search(rig: ReportRig, strategy: Strategy, target: PlainTarget, puppet: Puppet, task: Task) -> MeasuredSearch:
    tokenizer = target.tokenizer
    engine = LocalEngine(
        puppet,
        decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False)),
        eos_ids=target.eos_ids,
        kv_bytes=rig.pick(20 << 30, 32 << 20),
        max_running_requests=512,
        prepares_rounds=True,
    )
    scorer = PrmScorer(
        adapter=TokenClassifier(reads="tokens", judges="tokens"),
        path="bundled:prm",
        device=str(rig.device),
        dtype="float64",
        kv_mib=rig.pick(4096, 64),
    )
    scorer.load(writer=tokenizer)
    solver = Solver(
        strategy=strategy,
        engine=engine,
        scorer=scorer,
        embedder=HiddenStateEmbedder(distance_threshold=0.0053),
        prompt=target.prompt,
        find_answer=task.find,
        context_window=puppet.max_positions,
    )
    with solver:
        begin = time.perf_counter()
        outcomes = list(solver.solve_many(task))
        seconds = time.perf_counter() - begin
        stats = engine.stats
    num_correct, usage, kept_kv = 0, Usage(), list[float]()
    for problem, outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        num_correct += task.grade(problem, outcome.answer).is_correct is True
        usage += outcome.usage
        kept_kv.append(measure_kv(outcome.result).kept_tokens)
    return MeasuredSearch(seconds, num_correct, usage, fmean(kept_kv), stats)
