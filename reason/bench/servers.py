"""SGLang servers compared: the same problems decoded by each in turn, from nothing learned and nothing cached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from decoding.core import Generation, Spent
from reason.bench.workload import Question, Workload, questions
from reason.config.compose import make, member
from reason.engines.launcher.server_process import ServerProcess
from reason.engines.sglang_client.settings import Servers
from reason.models.checkpoint import find_model, load_tokenizer
from reason.prompt import Prompt

PLAIN, NGRAM, OURS = "plain", "NGRAM", "REASON"
ARMS: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    NGRAM: ("--speculative-algorithm", "NGRAM"),
    OURS: ("--speculative-algorithm", "REASON"),
    "REASON_RECURSIVE": ("--speculative-algorithm", "REASON_RECURSIVE"),
}
"""What is compared, and the flags that make it so; all but the first are given the same number of nodes."""


@dataclass(frozen=True)
class Run:
    """A workload decoded by one server, from an empty cache and an empty table. Prompts are part of the time."""

    work: Workload
    seconds: float
    generations: tuple[Generation, ...]

    @property
    def spent(self) -> Spent:
        """Of all branches together."""
        return sum((generation.spent for generation in self.generations), Spent())

    @property
    def logprob(self) -> float:
        """Mean log-probability of what was written, given by the model at temperature 1. Whoever samples as the model
        has it comes near plain decoding; whoever takes likely tokens too often comes out above it."""
        return fmean(logprob for generation in self.generations for logprob in generation.logprobs)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.spent.tokens / self.seconds

    @property
    def accepted_length(self) -> float:
        """Tokens per verification step of a branch, the one nobody guessed included; mean over the families.

        The first token of a branch comes with its prompt and counts as neither.
        """
        sums: dict[str, Spent] = {}
        for family, generation in zip(self.work.families, self.generations, strict=True):
            sums[family] = sums.get(family, Spent()) + generation.spent
        return fmean((s.tokens - s.calls) / (s.forwards - s.calls) for s in sums.values())


@dataclass
class Race:
    """One arm at one number of live branches: its runs as they were made, each with the plain run of its turn."""

    arm: str
    live: int
    runs: list[Run] = field(default_factory=list)
    plain: list[Run] = field(default_factory=list)

    @property
    def accepted_length(self) -> float:
        return median(run.accepted_length for run in self.runs)

    @property
    def speeds(self) -> list[float]:
        """Tokens per second relative to the plain run of the same turn."""
        return [mine.rate / plain.rate for mine, plain in zip(self.runs, self.plain, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for tables and the JSON line."""
        return {
            "arm": self.arm,
            "live": self.live,
            "accepted_length": self.accepted_length,
            "accepted_lengths": [run.accepted_length for run in self.runs],
            "tokens_per_s": median(run.rate for run in self.runs),
            "speed": median(self.speeds),
            "speeds": self.speeds,
            "logprobs": [run.logprob for run in self.runs],
            "tokens": [run.spent.tokens for run in self.runs],
        }


@dataclass(frozen=True)
class Model:
    """A model of `conf/model` as the servers' client needs it: no weights."""

    path: str
    tokenizer: Any
    prompt: Prompt
    max_tokens: int

    @classmethod
    def of(cls, name: str) -> Model:
        settings = member("model", name)
        path = find_model(settings["path"]).source
        tokenizer = load_tokenizer(path)
        prompt = Prompt(make("model.prompt", settings["prompt"]), tokenizer)
        return cls(path, tokenizer, prompt, settings["sampling"]["max_tokens"])

    def work(self, *, per_family: int, trajectories: int) -> Workload:
        """Held-out problems at temperature 1."""
        asked: tuple[Question, ...] = questions(self.prompt, per_family=per_family, split="heldout")
        return Workload(asked, trajectories, temperature=1.0, max_tokens=self.max_tokens)


def compare(
    servers: Mapping[str, ServerProcess],
    model: Model,
    work: Workload,
    *,
    live: Sequence[int],
    repeats: int,
    seconds: float,
    on_run: Callable[[str, int, Run], None],
) -> list[Race]:
    """All servers take turns, plain decoding first in each. They are paused, but for the one whose turn it is. In every
    repetition the branches are other ones.

    After so many seconds no repetition is begun any more; the first always is.
    """
    races = {(n, arm): Race(arm, n) for n in live for arm in servers}
    until = time.monotonic() + seconds
    for repeat in range(repeats):
        if repeat and time.monotonic() > until:
            break
        asked = replace(work, first=repeat * work.trajectories)
        for n in live:
            for arm, server in servers.items():
                with _awake(server):
                    run = _decode(server.launch.url, model, asked, n)
                races[n, arm].runs.append(run)
                races[n, arm].plain.append(races[n, PLAIN].runs[-1])
                on_run(arm, n, run)
    return list(races.values())


@contextmanager
def _awake(server: ServerProcess) -> Iterator[None]:
    server.resume()
    try:
        yield
    finally:
        server.pause()


def _decode(url: str, model: Model, work: Workload, live: int) -> Run:
    import httpx2

    engine = Servers(urls=[url], most=live).open(model.path, tokenizer=model.tokenizer, vocab_size=None)
    try:
        httpx2.post(f"{url}/flush_cache", timeout=60).raise_for_status()
        begin = time.perf_counter()
        done = asyncio.run(engine.generate(work.requests()))
        seconds = time.perf_counter() - begin
    finally:
        engine.close()
    return Run(work, seconds, tuple(done))
