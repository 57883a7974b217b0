"""Several scorers as one, with given and learned weights."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import Usage
from reason import ConfigError
from reason.config.compose import compose_settings, instantiate, load_option
from reason.runs.json_files import format_json_line
from reason.scorers.ensemble import EnsemblePaths, EnsembleScorer
from reason.scorers.ensemble_weights import EnsembleWeights, fit_weights, learn_weights, main
from reason.settings.validate import validate_settings
from search.strategy import ScoredPaths, StepScores
from search.tree import Step

PROBABILITIES = st.floats(0.001, 0.999)


class MemberScorer:
    """Returns the scores that it was given."""

    def __init__(self, *scores: StepScores | None) -> None:
        self.scores = scores

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        return ScoredPaths(list(self.scores), Usage(scorer_calls=len(paths), scored_tokens=3))


def ensemble(**knobs: Any) -> EnsembleScorer:
    scorer: EnsembleScorer = instantiate(
        "scorer", load_option("scorer", "ensemble") | {"members": ["likelihood", "confidence"]} | knobs
    )
    return scorer


def logit(p: float) -> float:
    return math.log(p / (1 - p))


@settings(deadline=None)  # every example composes settings
@given(PROBABILITIES, PROBABILITIES, st.floats(0.1, 5), st.floats(0.1, 5))
def test_score_is_the_weighted_mean(a: float, b: float, weight_a: float, weight_b: float) -> None:
    share = weight_a / (weight_a + weight_b)
    mean = ensemble(weights=[weight_a, weight_b]).combine([a, b])
    assert mean is not None
    assert logit(mean) == pytest.approx(share * logit(a) + (1 - share) * logit(b), abs=1e-6)
    plain = ensemble(weights=[weight_a, weight_b], mean="probability").combine([a, b])
    assert plain == pytest.approx(share * a + (1 - share) * b)


@settings(deadline=None)
@given(st.floats(0, 1) | st.none(), st.floats(0, 1) | st.none(), st.sampled_from(["logit", "probability"]))
def test_score_is_a_probability_between_the_members_and_missing_only_where_all_are(
    a: float | None, b: float | None, mean: str
) -> None:
    combined = ensemble(mean=mean).combine([a, b])
    known = [score for score in (a, b) if score is not None]
    if not known:
        assert combined is None
    else:
        assert combined is not None
        assert min(known) - 1e-9 <= combined <= max(known) + 1e-9


def test_member_with_weight_zero_alone_gives_no_score() -> None:
    assert ensemble(weights=[1, 0]).combine([None, 0.5]) is None


def test_steps_are_combined_one_by_one_and_usage_is_added() -> None:
    step = Step((1,), "a")
    members = [MemberScorer([0.2, 0.4], None, None), MemberScorer([None, 0.8], [0.6], None)]
    paths = EnsemblePaths(ensemble(mean="probability"), members)
    scored = asyncio.run(paths.score([[step, step], [step], [step]]))
    assert scored.scores[0] == pytest.approx([0.2, 0.6])
    assert scored.scores[1] == pytest.approx([0.6])
    assert scored.scores[2] is None
    assert scored.usage == Usage(scorer_calls=6, scored_tokens=6)


def test_member_with_scores_of_another_length_is_named() -> None:
    paths = EnsemblePaths(ensemble(), [MemberScorer([0.5]), MemberScorer([0.5, 0.5])])
    with pytest.raises(ValueError, match="scorer confidence returned scores of another length"):
        asyncio.run(paths.score([[Step((1,), "a")]]))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"members": ["likelihood"]}, "members must be a list of two scorers"),
        ({"members": "likelihood"}, "members must be a list of two scorers"),
        ({"members": ["likelihood", "ensemble"]}, "members cannot hold an ensemble"),
        ({"members": ["likelihood", "likelyhood"]}, "did you mean likelihood"),
        ({"members": ["likelihood", {"judges": "pairs"}]}, "settings with scorer=OPTION"),
        ({"members": ["likelihood", {"scorer": "confidence", "tail": 0}]}, "tail must be"),
        ({"members": ["none", {"scorer": "judge", "judges": "pairs"}]}, "members must hold one that gives scores"),
        ({"members": ["judge", {"scorer": "judge", "judges": "pairs"}]}, "members must hold one judge at most"),
        ({"weights": [1]}, "weights must be 2 numbers >= 0"),
        ({"weights": [0, 0]}, "weights must be 2 numbers >= 0, not all 0"),
        ({"weights": [1, -1]}, "weights must be 2 numbers >= 0"),
        ({"mean": "median"}, "mean must be one of logit, probability"),
        ({"weights_file": "w.json", "mean": "probability"}, "weights_file holds weights of logits"),
        ({"weights_file": "nowhere/w.json"}, "nowhere/w.json"),
    ],
)
def test_wrong_knob_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ensemble(**knobs)


def test_member_is_validated_as_if_alone() -> None:
    with pytest.raises(ConfigError, match=r"members: function: scorer.function must be set"):
        validate_settings(*compose_settings(["scorer=ensemble", "scorer.members=[prm,function]"]))
    url = ["engine=openai", "engine.urls=[http://127.0.0.1:9/v1]", "engine.model=m", "speculation=off"]
    with pytest.raises(ConfigError, match="scorer=likelihood needs log-probabilities"):
        validate_settings(
            *compose_settings([*url, "model=bundled", "scorer=ensemble", "scorer.members=[prm,likelihood]"])
        )


def test_judge_among_the_members_compares() -> None:
    members = ["likelihood", "confidence", {"scorer": "judge", "judges": "pairs", "max_comparisons": 6}]
    scorer = ensemble(members=members)
    assert scorer.tournament is not None
    assert (scorer.tournament.max_comparisons, scorer.model, scorer.scoring) == (6, "target", members[:2])
    assert ensemble().tournament is None


def write_run(folder: Path, scores: Sequence[float | None], is_right: Sequence[bool], answer: str = "1") -> Path:
    folder.mkdir()
    samples = [
        {"node": i, "answer": answer, "grade": "right" if right else "wrong", "score": score, "tokens": 4}
        for i, (score, right) in enumerate(zip(scores, is_right, strict=True))
    ]
    (folder / "results.jsonl").write_text(json.dumps({"id": "p", "samples": samples}) + "\n", encoding="utf-8")
    return folder


def test_learned_weights_find_the_scorer_that_tells_and_are_used(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(400)
    is_right = rng.random(400) < truth
    runs = {
        "likelihood": write_run(tmp_path / "a", [*truth.tolist()], is_right.tolist()),
        "confidence": write_run(tmp_path / "b", rng.random(400).tolist(), is_right.tolist()),
    }
    file = tmp_path / "weights.json"
    main([f"{name}={folder}" for name, folder in runs.items()] + ["--out", str(file)])
    learned = EnsembleWeights.read(str(file))
    assert learned == learn_weights(runs)
    # the first scores are the probabilities themselves, the second say nothing
    assert learned.weights["likelihood"] == pytest.approx(1, abs=0.25)
    assert learned.weights["confidence"] < 0.15
    scorer = ensemble(weights_file=str(file))
    assert scorer.judges_solutions
    score = scorer.combine([0.8, 0.3])
    weights = learned.weights
    assert score is not None
    assert logit(score) == pytest.approx(
        learned.bias + weights["likelihood"] * logit(0.8) + weights["confidence"] * logit(0.3)
    )
    with pytest.raises(ConfigError, match=r"is for the members confidence, likelihood; these are likelihood, prm"):
        ensemble(members=["prm", "likelihood"], weights_file=str(file))


def test_weights_are_the_minimum_of_the_regression() -> None:
    """Compared with every neighbour on a grid around it."""
    rng = np.random.default_rng(1)
    scores = rng.uniform(0.01, 0.99, (80, 2))
    is_right = rng.random(80) < scores[:, 0]
    weights, bias = fit_weights(scores, is_right)

    def loss(first: float, second: float, offset: float) -> float:
        z = np.log(scores / (1 - scores)) @ [first, second] + offset
        return float(np.log1p(np.exp(np.where(is_right, -z, z))).sum() + 0.005 * (first**2 + second**2))

    best = loss(weights[0], weights[1], bias)
    for change in (-0.05, 0.05):
        assert loss(weights[0] + change, weights[1], bias) > best
        assert loss(weights[0], weights[1], bias + change) > best
        if weights[1] + change >= 0:
            assert loss(weights[0], weights[1] + change, bias) > best


def test_scorer_that_counts_against_itself_has_no_weight() -> None:
    rng = np.random.default_rng(2)
    good = rng.random(200)
    is_right = rng.random(200) < good
    weights, _ = fit_weights(np.stack([good, 1 - good], axis=1), is_right)
    assert weights[0] > 0.5
    assert weights[1] == 0
    with pytest.raises(ValueError, match="no scorer tells right solutions from wrong ones"):
        fit_weights((1 - good)[:, None], is_right)


def test_runs_that_cannot_be_learned_from_are_refused(tmp_path: Path) -> None:
    few = write_run(tmp_path / "few", [0.5] * 8, [True, False] * 4)
    with pytest.raises(ValueError, match="at least 20 graded solutions"):
        learn_weights({"a": few, "b": few})
    right = write_run(tmp_path / "right", [0.5] * 30, [True] * 30)
    with pytest.raises(ValueError, match="right and wrong ones; there are 30, of which 30 are right"):
        learn_weights({"a": right, "b": right})
    other = write_run(tmp_path / "other", [0.5] * 30, [True] * 30, answer="2")
    with pytest.raises(ValueError, match="have not the same solutions"):
        learn_weights({"a": right, "b": other})
    with pytest.raises(SystemExit):
        main([f"a={right}", "--out", str(tmp_path / "w")])


def test_oracle_is_no_member() -> None:
    with pytest.raises(ConfigError, match="members cannot hold oracle, which knows the gold answers"):
        ensemble(members=["oracle", "likelihood"])


def test_weights_are_learned_from_the_last_whole_row_of_each_problem(tmp_path: Path) -> None:
    """A text may hold line breaks that are none in a file of rows."""

    def row(number: int, score: float) -> bytes:
        right = number % 2
        sample = {"node": 1, "answer": "1", "grade": "right" if right else "wrong", "score": score, "tokens": 5}
        return format_json_line({"id": f"p{number}", "text": "a\u2028b", "samples": [sample]})

    folders = {"prm": tmp_path / "prm", "likelihood": tmp_path / "likelihood"}
    for name, folder in folders.items():
        folder.mkdir()
        rng = np.random.default_rng(len(name))
        rows = [row(number, 0.3 + 0.4 * (number % 2) + 0.1 * rng.random()) for number in range(30)]
        (folder / "results.jsonl").write_bytes(b"".join([row(3, 0.01), *rows, rows[0][:20]]))
    weights = learn_weights(folders).weights
    assert all(weight > 0 for weight in weights.values())


def test_servers_aggregate_as_the_format_does_in_this_process() -> None:
    for name, expected in (("expectation", "min"), ("prm", "last")):
        config, _ = compose_settings(["search=beam_search", "scorer=sglang_prm", f"scorer.format={name}"])
        assert config["search"]["agg_strategy"] == config["scorer"]["agg_strategy"] == expected
