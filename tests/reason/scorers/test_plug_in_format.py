"""A reward-model format of a user is added with two files, a module and a yaml; a new head is one more class."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.plug_ins import solve_with_plug_in

MODULE = '''
import numpy as np

from reason.scorers.base import PrmAdapter
from reason.scorers.heads import NextTokenHead, RewardHead, TokenClassesHead
from reason.scorers.step_formats import SharedTokenFormat


class LastTokenPrm(PrmAdapter):
    """Scores a step by the bundled classifier's word on its last token."""

    architectures = ("LlamaForTokenClassification",)
    head = TokenClassesHead()
    shares_tokens = True

    def build_format(self, tokenizer):
        def score_outputs(outputs):
            odds = np.array([piece[-1, 1] - piece[-1, 0] for piece in outputs])
            return 1 / (1 + np.exp(-odds))

        return SharedTokenFormat(score_outputs)


def log_likelihood(logits, next_ids):
    return logits.log_softmax(1).gather(1, next_ids[:, None])


class LogLikelihoodHead(RewardHead):
    label = "log_likelihood"

    def load_parts(self, source, label_token_ids, dtype):
        return NextTokenHead().load_parts(source, label_token_ids, dtype)

    def make_reducer(self):
        return log_likelihood


class VerifierLikelihood(PrmAdapter):
    """Scores a step by its mean likelihood under the bundled verifier."""

    architectures = ("LlamaForCausalLM",)
    head = LogLikelihoodHead()
    shares_tokens = True

    def build_format(self, tokenizer):
        return SharedTokenFormat(lambda outputs: np.exp([piece.mean() for piece in outputs]))
'''
OPTION = (
    "scorer/mine.yaml",
    "_target_: reason.scorers.prm.PrmScorer\npath: bundled:prm\nadapter:\n  _target_: mine.LastTokenPrm\n",
)
QUESTION = "question='x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.'"
SETTINGS = ("scorer=mine", QUESTION, "search=beam_search", "search.n=4", "speculation=off")


def test_format_of_two_files_scores(tmp_path: Path) -> None:
    done = solve_with_plug_in(tmp_path, MODULE, OPTION, *SETTINGS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["scorer"] == "mine"


def test_plug_in_head_scores(tmp_path: Path) -> None:
    settings = ("scorer.path=bundled:verifier", "scorer.adapter._target_=mine.VerifierLikelihood")
    done = solve_with_plug_in(tmp_path, MODULE, OPTION, *SETTINGS, *settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["scorer"] == "mine"


def test_checkpoint_of_another_architecture_is_named(tmp_path: Path) -> None:
    done = solve_with_plug_in(tmp_path, MODULE, OPTION, *SETTINGS, "scorer.path=bundled:verifier")
    assert done.returncode == 2
    assert "scorer.path=bundled:verifier is a LlamaForCausalLM, but LastTokenPrm reads" in done.stderr
