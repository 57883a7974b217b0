"""Trees of SGLang's own draft worker, merged with n-grams, change nothing of what is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from decoding.core import SamplingParams, Usage
from reason.solver import Solver
from tests.support.sglang_servers import DRAFT, IS_INSTALLED, NOT_INSTALLED, TARGET, RealServer
from tests.support.sglang_solvers import generate_all, load_remote

pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason=NOT_INSTALLED)
STEPS = 3
# SGLang compiles one function of its drafts, which would take longer than all the tests
NO_COMPILER = {"TORCH_COMPILE_DISABLE": "1"}


def write_random_head(folder: Path) -> Path:
    """Writes an EAGLE head with random weights: one layer, between the target's own embedding and output."""
    config = json.loads((TARGET / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    width, inner = config["hidden_size"], config["intermediate_size"]
    attention = [(f"layers.0.self_attn.{name}_proj", (width, width)) for name in "qkvo"]
    shapes = {"fc.weight": (width, 2 * width), "fc.bias": (width,), "layers.0.mlp.down_proj.weight": (width, inner)}
    shapes |= {f"layers.0.mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
    shapes |= {f"{name}.weight": shape for name, shape in attention}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in attention}
    random = torch.Generator().manual_seed(1)
    weights = {name: 0.05 * torch.randn(shape, generator=random) for name, shape in shapes.items()}
    weights["layers.0.post_attention_layernorm.weight"] = torch.ones(width)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RealServer]]:
    """Servers that draft with the small bundled model and with a random head; the first has KV for a few requests."""
    folder = tmp_path_factory.mktemp("fused")
    heads = {"standalone": (DRAFT, 1024), "eagle": (write_random_head(folder / "head"), 4096)}
    with ExitStack() as stack:
        started = {}
        for name, (draft, tokens) in heads.items():
            flags = ("--speculative-algorithm", "REASON", "--reason-draft", name, "--reason-draft-agree", "0.005")
            tree = ("--speculative-num-steps", str(STEPS), "--speculative-num-draft-tokens", "10")
            model = ("--speculative-draft-model-path", str(draft))
            server = RealServer(folder / f"{name}.log", *flags, *tree, *model, tokens=tokens, variables=NO_COMPILER)
            stack.callback(server.kill)
            started[name] = server
        for server in started.values():
            server.wait()
        yield started


@pytest.mark.parametrize("name", ["standalone", "eagle"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=100, temperature=0.0),
        SamplingParams(max_tokens=100),
        SamplingParams(max_tokens=100, temperature=0.6, top_p=0.9, top_k=20),
    ],
    ids=["greedy", "temperature 1", "filtered"],
)
def test_tokens_of_a_seed_equal_those_of_plain_local_decoding(
    local_solver: Solver, servers: dict[str, RealServer], name: str, params: SamplingParams
) -> None:
    each = 16 if params.temperature == 1 else 4
    with load_remote([servers[name]], "scorer=none", "search=self_consistency") as remote_solver:
        theirs = generate_all(remote_solver, params, each=each)
    ours = generate_all(local_solver, params, each=each)
    assert [generation.tokens for generation in ours] == [generation.tokens for generation in theirs]
    assert [generation.finish for generation in ours] == [generation.finish for generation in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    assert sum((generation.usage for generation in theirs), Usage()).accepted > 0, "no draft was accepted"
