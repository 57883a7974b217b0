"""Training of routers on recorded pairs of steps, and their evaluation."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import reason
from decoding.core import SamplingParams, Tokens, Usage
from reason.models.byte_tokenizer import ByteTokenizer
from reason.routing.base import score_step
from reason.routing.features import FEATURE_NAMES, StepFeatureAdapter, StepFeatureHead, path_features
from reason.routing.pairs import StepPair, append_pairs, read_pairs
from reason.routing.rollouts import measure_truth
from reason.scorers.incremental import IncrementalScorer
from reason.scorers.local_reader import open_local_reader
from reason.scorers.read_limit import ReadLimit
from reason.training.router import (
    RouterRecipe,
    balance_labels,
    pair_advantages,
    predict_gains,
    split_pairs,
    train_router,
)
from reason.training.router_head import HeadRecipe, read_features, read_features_cached, train_head
from reason.training.router_metrics import (
    calibration_error,
    evaluate_router,
    improved_share,
    rank_correlation,
    realised_gain,
    roc_auc,
)
from search.tree import Step
from tests.support.paths import SCRIPTS
from tests.support.toy_search import ROOT, ToyEngine, decode_bytes, extract_answer

RECIPE = RouterRecipe(epochs=4, tokens_per_batch=512, rate=3e-3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random language model of a few thousand weights."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, num_key_value_heads=2, eos_token_id=0, bos_token_id=None, **shape)
    folder = tmp_path_factory.mktemp("base")
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def pairs(count: int, seed: int = 0) -> list[StepPair]:
    """The large model is better wherever the small one's step holds token 9."""
    rng, made = random.Random(seed), []
    for i in range(count):
        draft = tuple(rng.choice((9, 10, 11)) if j == 1 else rng.randrange(12, 60) for j in range(4))
        better = 9 in draft
        prefix = tuple(rng.randrange(12, 60) for _ in range(rng.randint(3, 9)))
        before = (1,) * (i % 3)
        made.append(StepPair(f"p{i // 4}", prefix, draft, draft, 0.2 if better else 0.8, 0.5, rng.random(), before))
    return made


class TestPairs:
    def test_pairs_are_read_back_and_a_truncated_end_is_left_out(self, tmp_path: Path) -> None:
        file = tmp_path / "pairs.jsonl"
        append_pairs(file, pairs(3))
        append_pairs(file, pairs(2, seed=1))
        with file.open("a") as out:
            out.write('{"group": "half')
        assert list(read_pairs(file)) == [*pairs(3), *pairs(2, seed=1)]
        append_pairs(file, pairs(1, seed=2))
        assert list(read_pairs(file)) == [*pairs(3), *pairs(2, seed=1), *pairs(1, seed=2)]

    def test_invalid_line_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "pairs.jsonl"
        file.write_text('{"group": 1}\n')
        with pytest.raises(ValueError, match="line 1: not a pair of steps"):
            list(read_pairs(file))

    def test_split_keeps_the_pairs_of_a_problem_together(self) -> None:
        train, held_out = split_pairs(pairs(100), 0.1, 0)
        assert len(train) + len(held_out) == 100
        assert not {p.group for p in train} & {p.group for p in held_out}

    def test_balanced_pairs_have_both_labels_equally_often(self) -> None:
        chosen = balance_labels(pairs(100), RECIPE, random.Random(0))
        assert sum(p.score_gain > 0 for p in chosen) * 2 == len(chosen)
        with pytest.raises(ValueError, match="never, or always, better"):
            balance_labels([p for p in pairs(100) if p.score_gain > 0], RECIPE, random.Random(0))


class TestRollouts:
    def test_step_truth_is_the_share_of_right_rollouts(self) -> None:
        """Steps that hold an `a` lead to the right answer from every other seed, others never."""

        def write(seed: int, prefix: Tokens) -> str:
            good = b"a" in bytes(prefix[len(ROOT) :]) and seed % 2 == 0
            return f"\\boxed{{{1 if good else 2}}}"

        def pair(draft: str, target: str) -> StepPair:
            return StepPair("p", ROOT, tuple(draft.encode()), tuple(target.encode()), 0.0, 0.0, None, ())

        engine = ToyEngine(write)
        recorded = [pair("bad", "a\n\n"), pair("b\n\n", "a\n\n"), pair("\\boxed{1}", "\\boxed{2}")]
        measured = asyncio.run(
            measure_truth(
                recorded, engine, count=40, params=SamplingParams(), root_length=len(ROOT), decode=decode_bytes,
                is_correct=lambda text: extract_answer(text) == "1", delimiter="\n\n", seed=3,
            )
        )  # fmt: skip
        assert (measured[0].small_truth, measured[1].small_truth) == (0.0, 0.0)
        assert measured[0].target_truth == measured[1].target_truth == pytest.approx(0.5, abs=0.25)
        assert (measured[2].small_truth, measured[2].target_truth) == (1.0, 0.0)
        assert len(engine.requests) == 80  # finished solutions and repeated prefixes are not continued
        assert [replace(p, small_truth=None, target_truth=None) for p in measured] == recorded

    def test_truth_and_score_labels_are_evaluated_apart(self) -> None:
        some = [replace(p, small_truth=0.0, target_truth=float(p.score_gain > 0)) for p in pairs(60)]
        judged = evaluate_router(np.array([p.score_gain for p in some]), some, 0.0)
        assert judged["oracle"].truth is not None
        assert judged["oracle"].truth > 0.8
        assert evaluate_router(np.zeros(60), pairs(60), 0.0)["oracle"].truth is None

    def test_router_can_be_trained_on_truth_or_score(self) -> None:
        some = [replace(p, small_truth=0.5, target_truth=0.5 - p.score_gain) for p in pairs(60)]
        assert np.allclose(pair_advantages(some, "truth"), -pair_advantages(some, "score"))
        assert evaluate_router(np.zeros(60), some, 0.0, "truth")["oracle"].auc == 0.0
        with pytest.raises(ValueError, match="--rollouts"):
            pair_advantages(pairs(1), "truth")
        with pytest.raises(ValueError, match="one of score, truth; got 'mood'"):
            pair_advantages(some, "mood")


class TestMetrics:
    def test_auc_is_the_probability_of_the_right_order(self) -> None:
        rng = np.random.default_rng(0)
        values, positive = rng.normal(size=60).round(1), rng.random(60) < 0.4
        wins = [(a > b) + 0.5 * (a == b) for a in values[positive] for b in values[~positive]]
        assert roc_auc(values, positive) == pytest.approx(np.mean(wins))
        assert np.isnan(roc_auc(values, np.ones(60, dtype=bool)))

    def test_spearman_depends_on_order_only(self) -> None:
        x = np.array([1.0, 2.0, 3.0, 4.0])
        assert rank_correlation(x, np.exp(x)) == pytest.approx(1.0)
        assert rank_correlation(x, -x) == pytest.approx(-1.0)
        assert np.isnan(rank_correlation(x, np.ones(4)))

    def test_calibration_error_is_the_gap_of_prediction_and_frequency(self) -> None:
        likely = np.array([0.8] * 10)
        assert calibration_error(likely, np.array([True] * 8 + [False] * 2)) == pytest.approx(0.0)
        assert calibration_error(likely, np.array([True] * 3 + [False] * 7)) == pytest.approx(0.5)

    def test_oracle_bounds_every_other_router(self) -> None:
        rng = np.random.default_rng(1)
        advantage, other = rng.normal(size=50), rng.normal(size=50)
        for share in (0.1, 0.3, 0.5):
            assert realised_gain(advantage, advantage, share) >= realised_gain(other, advantage, share)
            assert improved_share(advantage, advantage, share) >= improved_share(other, advantage, share)
        assert realised_gain(other, advantage, 1.0) == pytest.approx(advantage.mean(), abs=1e-4)


def of_step(log_p: np.ndarray, tokens: torch.Tensor) -> np.ndarray:
    """The statistics `[T, 3]` of a step of T tokens, from `[T, V]` before each."""
    entropy = -(np.exp(log_p) * log_p).sum(1)
    return np.stack([log_p[np.arange(len(tokens)), tokens.numpy()], log_p.max(1), entropy], axis=1)


def parts_of(pair: StepPair) -> list[Tokens]:
    """The steps before and the draft's."""
    start, steps = len(pair.prefix) - sum(pair.step_lengths), []
    for length in pair.step_lengths:
        steps.append(pair.prefix[start : start + length])
        start += length
    return [*steps, pair.small_step]


class TestStepFeatures:
    @pytest.fixture(scope="class")
    @staticmethod
    def features(base: str) -> np.ndarray:
        return read_features(base, pairs(40), "cpu")

    def test_step_features_equal_those_by_transformers(self, base: str, features: np.ndarray) -> None:
        model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        for pair, row in zip(pairs(40), features, strict=True):
            tokens = torch.tensor([pair.prefix + pair.small_step])
            with torch.no_grad():
                log_p = model(input_ids=tokens, use_cache=False).logits[0].log_softmax(-1)
            path = [len(pair.prefix) - len(pair.step_lengths) + i for i in range(len(pair.step_lengths) + 1)] + [
                tokens.shape[1]
            ]
            whole = log_p.double().numpy()
            steps = [of_step(whole[a - 1 : b - 1], tokens[0, a:b]) for a, b in pairwise(path)]
            assert np.allclose(row, path_features(steps)[-1], atol=1e-4)
            assert row[FEATURE_NAMES.index("worst ratio")] == pytest.approx(
                (steps[-1][:, 0] - steps[-1][:, 1]).min(), abs=1e-4
            )
            assert row[FEATURE_NAMES.index("steps before")] == len(pair.step_lengths)

    def test_router_scores_training_features_and_encodes_no_step_twice(self, base: str, features: np.ndarray) -> None:
        rng = np.random.default_rng(0)
        head = train_head(base, features, list(rng.random(40) < 0.5), HeadRecipe(epochs=2))
        step_format = StepFeatureAdapter(step_head=head).build_format(ByteTokenizer())
        opened = open_local_reader(base, StepFeatureAdapter.head, (), device="cpu", dtype="float32", kv_mib=8)
        with closing(opened.reader) as reader:
            for pair, row in zip(pairs(40), features, strict=True):
                steps = [Step(part, "") for part in parts_of(pair)]
                prompt = pair.prefix[: len(pair.prefix) - len(pair.step_lengths)]
                bound = IncrementalScorer(
                    reader=reader, step_format=step_format, limit=ReadLimit.from_setting(64), question="", prompt=prompt
                )
                for i in (0, -1):  # the last one after the first, and after all
                    likely, spent = asyncio.run(score_step(bound, steps[:i], steps[i]))
                assert likely == pytest.approx(head.predict_gain(row[None])[0], abs=1e-3)
                assert spent.scored_tokens == sum(len(step.tokens) for step in steps[1:])
                assert asyncio.run(score_step(bound, steps[:-1], steps[-1]))[1].scored_tokens == 0
                assert asyncio.run(score_step(bound, steps, Step((1,) * 64, ""))) == (None, Usage())

    def test_steps_are_encoded_once(self, base: str, features: np.ndarray, tmp_path: Path) -> None:
        file = tmp_path / "evidence.npz"
        assert np.allclose(read_features_cached(base, pairs(40), "cpu", file), features, atol=1e-4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("reason.training.router_head.read_features", lambda *_: pytest.fail("read again"))
            assert np.allclose(read_features_cached(base, pairs(40), "cpu", file), features, atol=1e-4)
        assert len(read_features_cached(base, pairs(10), "cpu", file)) == 10  # other pairs are read

    def test_step_head_learns_and_is_loaded_from_disk(self, base: str, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        inputs = -rng.exponential(size=(800, len(FEATURE_NAMES)))
        better = list(inputs[:, 3] < np.median(inputs[:, 3]))
        head = train_head(base, inputs[:600], better[:600], HeadRecipe(epochs=20, batch=32))
        likely = head.predict_gain(inputs[600:])
        assert roc_auc(likely, np.array(better[600:])) > 0.95
        head.save(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        assert np.array_equal(StepFeatureHead.load(tmp_path, config).predict_gain(inputs[600:]), likely)
        with pytest.raises(ValueError, match="trained on other features"):
            StepFeatureHead.load(tmp_path, config | {"evidence": ["mood"]})
        with pytest.raises(ValueError, match="never, or always, better"):
            train_head(base, inputs, [True] * 800, HeadRecipe())


class TestTraining:
    def test_trained_router_finds_the_learnable_label(self, base: str, tmp_path: Path) -> None:
        train, held_out = split_pairs(pairs(600), 0.1, 0)
        model = train_router(base, train, RECIPE, tmp_path, "cpu")
        judged = evaluate_router(predict_gains(model, held_out, RECIPE, "cpu"), held_out, RECIPE.margin)
        assert judged["router"].auc > 0.95
        assert judged["own doubt"].auc < 0.75
        assert judged["own score, negated"].auc == 1.0  # it gives the label away in these pairs

    def test_training_of_other_pairs_or_another_recipe_does_not_continue_an_earlier_one(
        self, base: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "unlink", lambda *_, **__: None)  # as if it had been killed after its last epoch
            first = train_router(base, pairs(60), RECIPE, tmp_path, "cpu")
        other = train_router(base, pairs(60), replace(RECIPE, seed=RECIPE.seed + 1), tmp_path, "cpu")
        assert "is of another training" in caplog.text
        same = [torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True)]
        assert not all(same)

    def test_killed_training_resumes_to_the_same_end(self, base: str, tmp_path: Path) -> None:
        some = pairs(60)
        for name in ("whole", "parts"):
            (tmp_path / name).mkdir()
        whole = train_router(base, some, RECIPE, tmp_path / "whole", "cpu")

        class Killed(Exception):
            pass

        steps = torch.optim.AdamW.step
        count = 0

        def dies(self: torch.optim.AdamW, *more: object) -> object:
            nonlocal count
            count += 1
            if count > 3:
                raise Killed
            return steps(self, *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim.AdamW, "step", dies)
            with pytest.raises(Killed):
                train_router(base, some, RECIPE, tmp_path / "parts", "cpu")
        again = train_router(base, some, RECIPE, tmp_path / "parts", "cpu")
        assert not list(tmp_path.rglob("checkpoint.pt")), "an ended training is not continued"
        for (name, one), other in zip(whole.state_dict().items(), again.state_dict().values(), strict=True):
            assert torch.allclose(one, other, atol=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("method", ["features", "finetune"])
def test_router_is_collected_trained_and_used(method: str, tmp_path: Path) -> None:
    def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPTS / script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    file, folder = tmp_path / "pairs.jsonl", tmp_path / "router"
    first = run("collect_steps.py", "--out", str(file), "limit=3")
    assert first.returncode == 0, first.stderr
    count = len(list(read_pairs(file)))
    assert count > 10
    again = run("collect_steps.py", "--out", str(file), "limit=3")
    assert "0 pairs of 0 problems" in again.stderr
    trained = run("train_router.py", method, str(file), "--out", str(folder), "--epochs", "1", "--held-out", "0.34")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["pairs"] == count
    with reason.load("router=arbitrage", f"router.path={folder}", "search.n=2", "speculation=off") as solver:
        steps = solver.solve("x0 = 3. Each next term is 5 times the one before, modulo 7. Find x2.").tree.nodes
    assert all(node.step.model in ("draft", "target") for node in steps)
    assert any(node.step.routing_score is not None for node in steps)
    wrong = run("train_router.py", method, str(file), "--out", str(folder / "x"), "--base", "bundled:none")
    assert wrong.returncode == 2
    assert "not among the bundled models" in wrong.stdout
