"""Runs CTranslate2 as one of the engines that are compared; converts a checkpoint for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decoding.core import Tokens
from reason.bench.baselines import BranchWorkload
from reason.bench.peers.interface import Decode

_CONFIG, _VOCABULARY = "config.json", "vocabulary.json"


def convert_checkpoint(source: str, folder: Path) -> None:
    """Converts a checkpoint in hub format into a new folder, with CTranslate2's converter; weights stay as they are."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(source).convert(str(folder))
    # The converter writes null for a token that the tokenizer lacks, and the reader refuses it. The token that begins a
    # text is used for texts without a prompt only.
    config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    config["bos_token"] = config["bos_token"] or config["eos_token"]
    (folder / _CONFIG).write_text(json.dumps(config), encoding="utf-8")


class CTranslate2Peer:
    """Implements `PeerEngine` with a converted checkpoint, in float32, or in bfloat16 where it can on this CPU.

    Sampled branches are hypotheses of one prompt, which takes less time than a batch of equal prompts.
    """

    def __init__(self, folder: Path, threads: int, *, wants_bfloat16: bool = False) -> None:
        import ctranslate2

        has_bfloat16 = "bfloat16" in ctranslate2.get_supported_compute_types("cpu")
        dtype = "bfloat16" if wants_bfloat16 and has_bfloat16 else "float32"
        self._generator = ctranslate2.Generator(
            str(folder), device="cpu", compute_type=dtype, inter_threads=1, intra_threads=threads
        )
        self._names: list[str] = json.loads((folder / _VOCABULARY).read_text(encoding="utf-8"))
        self.description = f"ctranslate2 {ctranslate2.__version__}, {dtype}, branches are hypotheses of one prompt"

    @contextmanager
    def open_run(self, workload: BranchWorkload, *, greedy: bool = False) -> Iterator[Decode]:
        prompt = [self._names[token] for token in workload.prompt]

        def decode() -> list[Tokens]:
            # greedy branches are all the same, and may not be asked for as hypotheses
            results = self._generator.generate_batch(
                [prompt] * (workload.branches if greedy else 1),
                num_hypotheses=1 if greedy else workload.branches,
                sampling_topk=1 if greedy else 0,  # 0: every token can be drawn
                sampling_temperature=1.0,
                max_length=workload.new,
                min_length=0 if greedy else workload.new,
                include_prompt_in_result=False,
            )
            return [tuple(ids) for result in results for ids in result.sequences_ids]

        yield decode
