"""Recorded texts replayed through the engine: same tokens with and without drafts; wrong rows teach nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.core import Tokens
from decoding.model.transformers_checkpoint import HFBackend
from decoding.round import Speculation
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.drafters.hybrid import HybridSource
from decoding.speculation.drafters.source import DraftSource
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch
from decoding.speculation.target_logits import TargetLogits
from reason.bench.accepted_paths import AcceptedPathTable
from reason.bench.puppet import MINIATURE, make_body
from reason.bench.recorded_target import RecordedTarget, RecordedText
from reason.bench.replay import EncodedProblem, read_recordings
from reason.bench.speculation_run import SpeculationRun, run_workload
from reason.bench.workload import Workload
from tests.support.paths import DATA

SAMPLES = [
    "She eats 16 - 3 = 13 eggs.\nShe sells 13 * 2 = 26.\nA: 26",
    "She eats 16 - 3 = 13 eggs.\nShe sells 13 * 2 = 26 of them.\nA: 26",
    "16 - 3 = 13 eggs are left.\nShe sells 13 * 2 = 26.\nA: 26",
]


@pytest.fixture(scope="module")
def body() -> HFBackend:
    return make_body(replace(MINIATURE, vocab_size=20_000), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def target(body: HFBackend, tmp_path_factory: pytest.TempPathFactory) -> RecordedTarget:
    file = tmp_path_factory.mktemp("recordings") / "samples.jsonl"
    rows = [{"problem": f"Janet has {n} ducks. How much does she make?", "samples": SAMPLES} for n in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RecordedTarget.read(body, file, tokenizer=None, limit=2)


def decode_all(target: RecordedTarget, speculation: Speculation, live: int = 3) -> SpeculationRun:
    questions = target.make_questions(per_family=9, split="heldout")
    work = Workload(questions, target.num_samples, 1.0, target.max_tokens)
    return run_workload(target, work, speculation, live=live)


def recorded_tokens(target: RecordedTarget) -> tuple[Tokens, ...]:
    return tuple((*text, target.end) for problem in target.problems for text in problem.samples)


SOURCES: dict[str, Callable[[], DraftSource]] = {
    "stand": Stand,
    "suffix": SuffixDecoding,
    "hybrid": lambda: HybridSource((Stand(), SuffixDecoding())),
}


@pytest.mark.parametrize("live", [1, 6])
@pytest.mark.parametrize("name", ["plain", *SOURCES])
def test_outputs_are_the_recordings(target: RecordedTarget, name: str, live: int) -> None:
    speculation = Speculation()
    if name != "plain":
        speculation = Speculation(TreeDrafter(SOURCES[name]()), FixedController(6), Coupled())
    run = decode_all(target, speculation, live)
    assert run.outputs == recorded_tokens(target)
    assert (run.stats.accepted > 20) == (name != "plain")


def test_text_of_the_recordings_is_decoded(target: RecordedTarget) -> None:
    assert [target.tokenizer.decode(list(text)) for text in target.problems[0].samples] == SAMPLES


@dataclass(frozen=True)
class StoredLogits:
    """Stores what a round's tokens are chosen from, then accepts as `Coupled` does."""

    rows: list[torch.Tensor] = field(default_factory=list)
    lossless = Coupled.lossless
    supported_sampling = Coupled.supported_sampling

    def verify_drafts(
        self, branches: Sequence[Branch], drafts: Sequence[Draft], target: TargetLogits
    ) -> list[VerifyResult]:
        self.rows.append(target.logits_WV.clone())
        return Coupled().verify_drafts(branches, drafts, target)


def test_recorded_tokens_have_all_probability_and_other_rows_are_the_models(target: RecordedTarget) -> None:
    stored = StoredLogits()
    run = decode_all(target, Speculation(TreeDrafter(Stand()), FixedController(6), stored))
    p = torch.cat(stored.rows).softmax(-1)
    largest = p.max(-1).values
    is_forced = largest == 1
    # a row after a wrong draft: the random body is nearly sure of nothing
    assert is_forced.sum() == sum(map(len, run.outputs)) < len(p)
    assert (largest[~is_forced] < 0.01).all()


def test_only_accepted_rows_teach_the_table(target: RecordedTarget) -> None:
    speculation = target.adapt_speculation(
        Speculation(TreeDrafter(Stand())), Workload(target.make_questions(per_family=1, split="heldout"), 1, 1.0, 9)
    )
    drafter = speculation.drafter
    assert isinstance(drafter, TreeDrafter)
    assert isinstance(drafter.source, AcceptedPathTable)
    assert drafter.table is not None  # the fast way to build trees is still taken
    assert drafter.draw == "likely"
    assert isinstance(speculation.acceptance, RecordedText)


def test_recordings_of_named_models_are_read(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    row = {
        "question": "1 + 1?",
        "ground_truth": "2",
        "6b": {"solution": "2", "is_correct": True},
        "175b": {"solution": "3"},
    }
    file.write_text(json.dumps(row))
    (recording,) = read_recordings(file)
    assert (recording.problem, recording.samples) == ("1 + 1?", ("2", "3"))
    file.write_text(json.dumps(row | {"samples": ["4"]}))
    assert read_recordings(file)[0].samples == ("4",)  # a list comes first
    file.write_text(json.dumps({"question": "1 + 1?", "6b": {"answer": "2"}}))
    with pytest.raises(ValueError, match="must be an object with samples or completions or solutions"):
        read_recordings(file)


def test_what_does_not_fit_the_body_is_refused(target: RecordedTarget) -> None:
    narrow = make_body(replace(MINIATURE, vocab_size=100), device="cpu", dtype="float32")
    with pytest.raises(ValueError, match=r"vocabulary of \d+ tokens does not fit the body's of 100"):
        replace(target, backend=narrow)
    short = make_body(replace(MINIATURE, vocab_size=20_000, max_positions=64), device="cpu", dtype="float32")
    with pytest.raises(ValueError, match="exceeds the body's window of 64"):
        replace(target, backend=short, problems=(EncodedProblem((1,), ((2,) * 80,)),))


def test_real_solutions_are_replayed_token_for_token(body: HFBackend) -> None:
    file = DATA / "traces_gsm8k.jsonl"
    if not file.exists():
        pytest.skip(f"no recorded solutions at {file}")
    target = RecordedTarget.read(body, file, tokenizer=None, limit=3)
    assert target.num_samples == 4
    characters = sum(len(target.tokenizer.decode(list(text))) for text in recorded_tokens(target))
    # as long as those of real models on such texts, of which many are digits: not letters, not phrases
    assert 1.8 < characters / np.sum([len(text) for text in recorded_tokens(target)]) < 4
    run = decode_all(target, Speculation(TreeDrafter(Stand()), FixedController(8), Coupled()), live=4)
    assert run.outputs == recorded_tokens(target)
    assert 1.2 < run.tokens_per_forward < 4
