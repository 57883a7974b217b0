"""Drafters with a trained model are trusted from the start: the engine says so to its controller."""

from __future__ import annotations

import pytest

from decoding.round import Speculation
from decoding.speculation.controllers.throughput import ThroughputController
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.hybrid import HybridSource
from decoding.speculation.drafters.score_fallback import ScoreFallback
from decoding.speculation.drafters.source import DraftSource
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from tests.support.engines import open_engine
from tests.support.fakes import HashBackend


class TrustController(ThroughputController):
    is_trusting = False

    def trust_drafter(self) -> None:
        self.is_trusting = True


def draft_model() -> DraftModel:
    return DraftModel(HashBackend(), kv_bytes=4000)


@pytest.mark.parametrize(
    ("source", "is_trusted"),
    [
        (draft_model(), True),
        (HybridSource((Stand(), draft_model())), True),
        (ScoreFallback((SuffixDecoding(), draft_model())), True),
        (Stand(), False),
        (HybridSource((Stand(), SuffixDecoding())), False),
    ],
    ids=["draft_model", "stand_draft_model", "suffix_draft_model", "stand", "hybrid"],
)
def test_a_drafter_with_a_model_is_trusted(source: DraftSource, is_trusted: bool) -> None:
    controller = TrustController()
    with open_engine(HashBackend(), speculation=Speculation(TreeDrafter(source), controller)):
        pass
    assert controller.is_trusting == is_trusted
