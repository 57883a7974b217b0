"""Engines beside ours: equal work in turns, ratios of neighbours, conversions that are exact and made once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2Config

from decoding.core import Tokens
from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.baselines import BranchWorkload
from reason.bench.engine import open_model
from reason.bench.peers.comparison import (
    PeerComparison,
    PeerSeconds,
    compare_greedy,
    compare_peers,
    decode_greedily,
)
from reason.bench.peers.conversion import convert_once
from reason.bench.peers.installed import OURS, PEERS, PeerModel, PeerPackage, make_peer_model, open_peers
from reason.bench.peers.interface import Decode, PeerEngine
from reason.bench.peers.limits import WorkloadLimit, measure_limit
from reason.bench.peers.local_engine import LocalPeer, TransformersPeer
from reason.bench.peers.report import PeerReport
from reason.bench.peers.workloads import make_prompts
from reason.bench.roofline import Roofline, measure_roofline
from reason.models.checkpoint import eos_ids, find_model, load_tokenizer
from tests.support.random_models import random_model

PROMPT = tuple(range(5, 25))


@dataclass(frozen=True)
class ScriptedPeer:
    """Writes its name into `log` when it runs; `short` leaves out tokens."""

    name: str
    log: list[tuple[str, BranchWorkload]]
    short: int = 0
    description: str = "scripted"

    @contextmanager
    def open_run(self, workload: BranchWorkload, *, greedy: bool = False) -> Iterator[Decode]:
        def decode() -> list[Tokens]:
            self.log.append((self.name, workload))
            return [(1,) * (workload.new - self.short)] * workload.branches

        yield decode


def test_engines_take_turns_and_every_round_has_all_of_them() -> None:
    log: list[tuple[str, BranchWorkload]] = []
    engines: dict[str, PeerEngine] = {name: ScriptedPeer(name, log) for name in (OURS, "b", "c")}
    workloads = [BranchWorkload(PROMPT, 30, branches) for branches in (1, 4)]
    comparisons = compare_peers(engines, workloads, 3)
    timed = log[len(engines) * len(workloads) :]
    assert timed == [(name, workload) for _ in range(3) for workload in workloads for name in engines]
    assert all(workload.new < 30 for _, workload in log[:6]), "a warm-up is short"
    assert [{name: len(runs) for name, runs in each.runs.items()} for each in comparisons] == [
        dict.fromkeys(engines, 3)
    ] * 2


def test_an_engine_that_stops_early_is_refused() -> None:
    with pytest.raises(RuntimeError, match="scripted: 2 branches with 6 tokens; 2 branches with 8"):
        compare_peers({OURS: ScriptedPeer(OURS, [], short=1)}, [BranchWorkload(PROMPT, 8, 2)], 1)


@given(
    ours=st.lists(st.floats(0.01, 100), min_size=1, max_size=9),
    factor=st.floats(0.1, 10),
    clock=st.sampled_from(("wall", "cpu")),
)
def test_ratios_are_of_runs_in_the_same_round(ours: list[float], factor: float, clock: str) -> None:
    def runs(seconds: list[float]) -> list[PeerSeconds]:
        return [PeerSeconds(each, 1.0) if clock == "wall" else PeerSeconds(1.0, each) for each in seconds]

    comparison = PeerComparison(
        BranchWorkload(PROMPT, 8, 1), {OURS: runs(ours), "slower": runs([factor * each for each in ours])}
    )
    ratios = comparison.ratios("slower", "wall" if clock == "wall" else "cpu")
    assert (ratios.low, ratios.median, ratios.high) == pytest.approx((factor,) * 3)


@pytest.fixture(scope="module")
def small_engines() -> Mapping[str, PeerEngine]:
    model = random_model("llama")
    backend = HFBackend(model, device="cpu", dtype="float32")
    return {OURS: LocalPeer(backend), "transformers": TransformersPeer(model)}


@pytest.mark.parametrize("name", [OURS, "transformers"])
def test_sampled_branches_have_all_their_tokens_and_differ(small_engines: Mapping[str, PeerEngine], name: str) -> None:
    with small_engines[name].open_run(BranchWorkload(PROMPT, 12, 3)) as decode:
        branches = decode()
    assert [len(tokens) for tokens in branches] == [12] * 3
    assert len(set(branches)) == 3


def test_greedy_texts_are_compared_up_to_their_end(small_engines: Mapping[str, PeerEngine]) -> None:
    endless = decode_greedily(small_engines[OURS], PROMPT, 12, frozenset())
    assert len(endless) == 12
    agreement = compare_greedy(small_engines, [PROMPT, PROMPT[:7]], 12, frozenset())["transformers"]
    assert (agreement.agreeing, agreement.compared) == (24, 24)
    end = endless[5]
    assert decode_greedily(small_engines[OURS], PROMPT, 12, frozenset({end})) == endless[: endless.index(end)]


def test_a_checkpoint_is_converted_once_per_content_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REASON_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "model"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"1")
    made: list[Path] = []

    def convert(folder: str, file: Path) -> None:
        made.append(file)
        file.write_bytes((Path(folder) / "model.safetensors").read_bytes())

    first = convert_once(str(source), "f32.gguf", "1", convert)
    assert convert_once(str(source), "f32.gguf", "1", convert) == first
    assert (len(made), first.read_bytes()) == (1, b"1")
    assert convert_once(str(source), "f32.gguf", "2", convert) != first
    (source / "model.safetensors").write_bytes(b"2")
    assert convert_once(str(source), "f32.gguf", "1", convert).read_bytes() == b"2"
    assert len(made) == 3

    def fail(folder: str, file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        convert_once(str(source), "other", "1", fail)
    assert len(list(first.parent.iterdir())) == 3, "a failed conversion leaves nothing"


def test_engines_that_are_not_installed_are_named_and_not_opened(small_engines: Mapping[str, PeerEngine]) -> None:
    def never(model: PeerModel) -> PeerEngine:
        raise AssertionError("opened")

    packages = {
        OURS: PeerPackage({}, lambda model: small_engines[OURS]),
        "absent": PeerPackage({"pip-name": "no_such_module", "numpy": "numpy"}, never),
    }
    engines, missing = open_peers(PeerModel("", LocalPeer, None, 1), [OURS, "absent"], packages)  # type: ignore[arg-type]
    assert list(engines) == [OURS]
    assert missing == {"absent": "not installed: pip install pip-name"}


def test_only_the_last_row_of_a_prompt_needs_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason.bench.roofline.median_seconds", lambda *_, **__: 1.0)
    config = Qwen2Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=1000,
    )  # fmt: skip
    sizes: dict[str, Any] = {"prompt": 10, "private": 0, "dtype": torch.float32, "device": torch.device("cpu")}
    every = measure_roofline(config, branches=20, **sizes)
    last = measure_roofline(config, branches=20, **sizes, head_rows=1)
    assert every.flops - last.flops == 2 * 19 * 32 * 1000
    assert every.bytes_read == last.bytes_read

    row_counts: list[int | None] = []

    def measure(*_: object, head_rows: int | None = None, **__: object) -> Roofline:
        row_counts.append(head_rows)
        return last

    monkeypatch.setattr("reason.bench.peers.limits.measure_roofline", measure)
    measure_limit(config, BranchWorkload(PROMPT, 4, 8), torch.float32)
    assert row_counts == [None, 1]


def test_a_report_has_ratios_limits_and_what_is_missing(small_engines: Mapping[str, PeerEngine]) -> None:
    workload = BranchWorkload(PROMPT, 8, 2)
    runs = {OURS: [PeerSeconds(2.0, 1.0)] * 3, "b": [PeerSeconds(3.0, 0.5)] * 3}
    report = PeerReport(
        "bundled:target", 3, 1, {"processor": "P"}, {OURS: "mine", "b": "theirs 1.0"},
        {"c": "not installed: pip install c"}, compare_greedy(small_engines, [PROMPT], 4, frozenset()),
        [PeerComparison(workload, runs)],
        [WorkloadLimit(0.1, 0.2, "memory", 7)],
    )  # fmt: skip
    text = report.to_markdown("reason bench peers")
    assert "| 2 | 2.00 (2.00 to 2.00) | 1.50 (1.50 to 1.50) |" in text
    assert "| 2 | 1.00 (1.00 to 1.00) | 0.50 (0.50 to 0.50) |" in text
    assert "| 2 | 200.000 (memory) | 100.0 | 1.500 | 1.3x | 2.0x |" in text
    assert "- c: not installed: pip install c" in text
    assert "| transformers | 4 of 4 |" in text


@pytest.mark.parametrize(("length", "count"), [(1, 1), (100, 2), (2000, 3)])
def test_prompts_have_the_length_and_differ(length: int, count: int) -> None:
    prompts = make_prompts(load_tokenizer(find_model("bundled:target").source), length, count)
    assert [len(prompt) for prompt in prompts] == [length] * count
    assert len(set(prompts)) == count


@pytest.mark.parametrize("name", [name for name in PEERS if name != OURS])
def test_installed_engines_decode_the_same_greedy_tokens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := PEERS[name].list_missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    monkeypatch.setenv("REASON_CACHE", str(tmp_path))
    source = find_model("bundled:target").source
    model, backend = open_model(source, "cpu", "float32")
    tokenizer = load_tokenizer(source)
    engines, _ = open_peers(make_peer_model(source, backend, model, 1), [OURS, name])
    prompts = [prompt for length in (9, 40, 300) for prompt in make_prompts(tokenizer, length, 2)]
    agreement = compare_greedy(engines, prompts, 100, eos_ids(source, tokenizer))[name]
    assert agreement.agreeing == agreement.compared > 100
    with engines[name].open_run(BranchWorkload(prompts[0], 12, 5)) as decode:
        branches = decode()
    assert [len(tokens) for tokens in branches] == [12] * 5
    assert len(set(branches)) > 1


def test_a_model_on_a_hub_is_refused() -> None:
    with pytest.raises(ValueError, match="--model must be a folder or bundled:NAME, got owner/name"):
        make_peer_model("owner/name", LocalPeer, None, 1)  # type: ignore[arg-type]


def test_sampling_follows_the_model(small_engines: Mapping[str, PeerEngine]) -> None:
    """Over many branches the first token of the local engine and of transformers has the same distribution."""
    workload = BranchWorkload(PROMPT, 1, 400)
    shares = {}
    for name, engine in small_engines.items():
        with engine.open_run(workload) as decode:
            shares[name] = np.bincount([tokens[0] for tokens in decode()], minlength=97) / 400
    assert np.abs(shares[OURS] - shares["transformers"]).sum() < 0.6
