"""Compares SGLang servers: each decodes the same problems in turn, with an empty cache and empty draft tables."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

from decoding.core import Generation, Usage
from decoding.sglang_plugin import COUNTS_BEGIN, COUPLED_ALGORITHM, RECURSIVE_ALGORITHM
from reason.bench.workload import Workload, WorkloadQuestion, make_questions
from reason.config.compose import instantiate, load_option
from reason.engines.launcher.server_process import ServerProcess
from reason.engines.sglang_client.settings import SGLangSettings
from reason.models.checkpoint import Checkpoint, find_model, load_tokenizer
from reason.models.tokenizer import PretrainedTokenizer
from reason.prompt import Prompt

PLAIN, NGRAM, OURS = "plain", "NGRAM", COUPLED_ALGORITHM
FIXED, RECURSIVE = f"{OURS}-fixed", RECURSIVE_ALGORITHM
SERVER_FLAGS: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    NGRAM: ("--speculative-algorithm", NGRAM),
    FIXED: ("--speculative-algorithm", OURS, "--reason-controller", "fixed"),
    OURS: ("--speculative-algorithm", OURS, "--reason-controller", "adaptive"),
    RECURSIVE: ("--speculative-algorithm", RECURSIVE_ALGORITHM, "--reason-controller", "adaptive"),
}
"""The server variants and their flags; all but the first get the same number of draft nodes too."""


@dataclass(frozen=True)
class ServerRun:
    """A workload decoded by one server, with empty cache and draft tables. The time includes the prompts.

    rounds   rounds by draft nodes of each request, as our plug-in counts them; empty for other servers
    """

    workload: Workload
    seconds: float
    generations: tuple[Generation, ...]
    rounds: Mapping[int, int]

    @property
    def usage(self) -> Usage:
        """Usage of all branches together."""
        return sum((generation.usage for generation in self.generations), Usage())

    @property
    def logprob(self) -> float:
        """Mean log-probability of the generated tokens under the model at temperature 1.

        It is near that of plain decoding if the samples follow the model, and above it if likely tokens are sampled too
        often.
        """
        return fmean(logprob for generation in self.generations for logprob in generation.logprobs)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second."""
        return self.usage.tokens / self.seconds

    @property
    def accepted_length(self) -> float:
        """Tokens per verification step of a branch, the bonus token included; mean over the families.

        The first token of a branch comes from the prefill, which is no verification step, and does not count.
        """
        sums: dict[str, Usage] = {}
        for family, generation in zip(self.workload.families, self.generations, strict=True):
            sums[family] = sums.get(family, Usage()) + generation.usage
        return fmean((s.tokens - s.calls) / (s.forwards - s.calls) for s in sums.values())


@dataclass
class ServerSpeedRun:
    """The runs of one variant at one number of live branches, each with the plain run of the same repetition."""

    variant: str
    live: int
    runs: list[ServerRun] = field(default_factory=list)
    plain: list[ServerRun] = field(default_factory=list)

    @property
    def accepted_length(self) -> float:
        return median(run.accepted_length for run in self.runs)

    @property
    def nodes(self) -> float:
        """Draft nodes of a request and round, padding included; mean over the rounds that were counted."""
        counts: Counter[int] = sum((Counter(run.rounds) for run in self.runs), Counter())
        return sum(nodes * times for nodes, times in counts.items()) / max(1, counts.total())

    @property
    def plain_rounds(self) -> float:
        """Share of the counted rounds that had no drafts."""
        counts: Counter[int] = sum((Counter(run.rounds) for run in self.runs), Counter())
        return counts[0] / max(1, counts.total())

    @property
    def speeds(self) -> list[float]:
        """Tokens per second relative to the plain run of the same repetition."""
        return [run.tokens_per_s / plain.tokens_per_s for run, plain in zip(self.runs, self.plain, strict=True)]

    def to_json(self) -> dict[str, object]:
        """Returns the numbers of the tables and of the JSON line."""
        return {
            "variant": self.variant,
            "live": self.live,
            "accepted_length": self.accepted_length,
            "accepted_lengths": [run.accepted_length for run in self.runs],
            "tokens_per_s": median(run.tokens_per_s for run in self.runs),
            "speed": median(self.speeds),
            "speeds": self.speeds,
            "nodes": self.nodes,
            "plain_rounds": self.plain_rounds,
            "logprobs": [run.logprob for run in self.runs],
            "tokens": [run.usage.tokens for run in self.runs],
        }


@dataclass(frozen=True)
class ServedModel:
    """A model of `conf/model` as the client of the servers needs it, without weights."""

    path: str
    tokenizer: PretrainedTokenizer
    prompt: Prompt
    max_tokens: int

    @classmethod
    def load_settings(cls, name: str) -> ServedModel:
        settings = load_option("model", name)
        path = find_model(settings["path"]).source
        tokenizer = load_tokenizer(path)
        prompt = Prompt(instantiate("model.prompt", settings["prompt"]), tokenizer)
        return cls(path, tokenizer, prompt, settings["sampling"]["max_tokens"])

    def make_workload(self, *, per_family: int, trajectories: int) -> Workload:
        """Returns a workload of held-out problems at temperature 1."""
        questions: tuple[WorkloadQuestion, ...] = make_questions(self.prompt, per_family=per_family, split="heldout")
        return Workload(questions, trajectories, temperature=1.0, max_tokens=self.max_tokens)


def compare_servers(
    servers: Mapping[str, ServerProcess],
    model: ServedModel,
    workload: Workload,
    *,
    live: Sequence[int],
    repeats: int,
    seconds: float,
    on_run: Callable[[str, int, ServerRun], None],
) -> list[ServerSpeedRun]:
    """Runs the workload on each server in turn, plain decoding first; the other servers are paused meanwhile.

    Every repetition decodes other branches. No repetition begins after `seconds`, except the first.
    """
    speed_runs = {(n, variant): ServerSpeedRun(variant, n) for n in live for variant in servers}
    deadline = time.monotonic() + seconds
    for repeat in range(repeats):
        if repeat and time.monotonic() > deadline:
            break
        branches = replace(workload, first=repeat * workload.trajectories)
        for n in live:
            for variant, server in servers.items():
                with _resumed(server):
                    run = _decode_workload(server, model, branches, n)
                speed_runs[n, variant].runs.append(run)
                speed_runs[n, variant].plain.append(speed_runs[n, PLAIN].runs[-1])
                on_run(variant, n, run)
    return list(speed_runs.values())


@contextmanager
def _resumed(server: ServerProcess) -> Iterator[None]:
    server.resume()
    try:
        yield
    finally:
        server.pause()


def _decode_workload(server: ServerProcess, model: ServedModel, workload: Workload, live: int) -> ServerRun:
    url = server.launch.url
    settings = SGLangSettings(urls=[url], max_in_flight=live)
    engine = settings.open_engine(Checkpoint(model.path, {}), tokenizer=model.tokenizer)
    try:
        flush_cache(url, server.log)
        begin = time.perf_counter()
        generations = asyncio.run(engine.generate(workload.requests()))
        seconds = time.perf_counter() - begin
    finally:
        engine.close()
    return ServerRun(workload, seconds, tuple(generations), flush_cache(url, server.log))


def flush_cache(url: str, log: Path) -> dict[int, int]:
    """Empties cache and draft tables of a server; returns our plug-in's rounds since the last time, by draft nodes."""
    import httpx2

    # until nothing runs, for a while: the last request ends before the server has noticed
    httpx2.post(f"{url}/flush_cache", params={"timeout": 30}, timeout=60).raise_for_status()
    counts = [line for line in log.read_text(errors="replace").splitlines() if COUNTS_BEGIN in line]
    if not counts:
        return {}
    return {int(nodes): times for nodes, times in json.loads(counts[-1].partition(COUNTS_BEGIN)[2]).items()}
