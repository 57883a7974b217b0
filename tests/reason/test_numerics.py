"""The setting numerics reaches every model of a run that decides something, and is refused where it cannot hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest

from decoding import cpu_features
from decoding.core import HeadOutputs, Tokens
from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.models.checkpoint import find_model
from reason.scorers.heads import TokenClassesHead
from reason.scorers.local_reader import open_local_reader
from reason.settings.validate import validate_settings

INVARIANT = ("engine.numerics=invariant", "engine.device=cpu", "scorer.device=cpu")


@pytest.mark.parametrize(
    ("options", "scorer", "router"),
    [
        ((), "fast", "fast"),
        ((*INVARIANT, "scorer.dtype=float32"), "invariant", "invariant"),
        ((*INVARIANT, "scorer.numerics=fast"), "fast", "invariant"),
        (("engine=sglang",), "fast", "fast"),
    ],
)
def test_reward_models_and_routers_follow_the_engine(options: Sequence[str], scorer: str, router: str) -> None:
    config, choices = compose_settings(["scorer=prm", "router=arbitrage", "router.device=cpu", *options])
    assert (config["scorer"]["numerics"], config["router"]["numerics"]) == (scorer, router)
    if "engine=sglang" not in options:
        validate_settings(config, choices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("engine.numerics=exact",), r"^engine\.numerics must be one of fast, invariant; got 'exact'"),
        ((*INVARIANT, "scorer.dtype=float64"), r"^scorer\.numerics=invariant cannot run in float64"),
        ((*INVARIANT, "scorer.dtype=bfloat16"), r"^scorer\.numerics=invariant cannot run on a CPU but in the compiled"),
        ((*INVARIANT, "engine.dtype=float64"), r"^engine\.numerics=invariant cannot run in float64"),
        ((*INVARIANT, "engine.decoder=eager"), r"^engine\.numerics=invariant cannot run on a CPU but in the compiled"),
        ((*INVARIANT, "scorer.numerics=fast", "eviction=random"), r"^eviction=random leaves gaps .* set eviction=none"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused_before_a_model_loads(
    options: Sequence[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_features, "multiplies_bfloat16", lambda: False)
    config, choices = compose_settings(["scorer=prm", *options])
    with pytest.raises(ConfigError, match=message):
        validate_settings(config, choices)


def test_scores_have_the_same_bits_alone_and_among_others() -> None:
    paths = [tuple(range(5, 30)), (*range(5, 20), 90, 91, 92), tuple(range(40, 47))]
    opened = open_local_reader(
        find_model("bundled:prm").source, TokenClassesHead(), (), device="cpu", dtype="float32", kv_mib=8,
        numerics="invariant",
    )  # fmt: skip

    def read(sequences: Sequence[Tokens]) -> list[HeadOutputs]:
        return asyncio.run(opened.reader.encode(sequences, [1] * len(sequences)))

    with closing(opened.reader):
        together = read(paths)
        for path, expected in zip(paths, together, strict=True):
            np.testing.assert_array_equal(read([path])[0], expected)
