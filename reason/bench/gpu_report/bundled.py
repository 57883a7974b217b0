"""The bundled writer and its problems, made from parts: a lent machine has no hydra, which reads the yamls elsewhere.

A test compares them with the yamls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from decoding.model.transformers_checkpoint import HFBackend
from reason.bench.gpu_report.rig import ReportRig
from reason.bench.puppet import Puppet, find_shape
from reason.bench.workload import BundledTarget, WorkloadQuestion
from reason.models.checkpoint import eos_ids, find_model, load_tokenizer
from reason.prompt import Prompt, PromptFormat
from reason.tasks.synthetic import Synthetic

PATH, PROMPT, MAX_TOKENS = "bundled:target", "Question: {question}\nSolution:\n", 320
TASK, FAMILIES, DIFFICULTY = "synthetic_aime", ("recurrence", "digit_sums", "stones", "residues"), (1, 3)


class PlainTarget(BundledTarget):
    """Implements `SpeculationTarget` with the bundled writer."""

    def make_questions(self, *, per_family: int, split: Literal["train", "heldout"]) -> tuple[WorkloadQuestion, ...]:
        """See `SpeculationTarget`."""
        columns = [
            [
                WorkloadQuestion(family, problem.id, self.prompt.encode(problem.question))
                for problem in draw_problems(per_family, split, name=family, families=[family])
            ]
            for family in FAMILIES
        ]
        return tuple(question for row in zip(*columns, strict=True) for question in row)


def draw_problems(
    size: int, split: Literal["train", "heldout"], *, name: str = TASK, families: Sequence[str] = FAMILIES
) -> Synthetic:
    """Returns the first problems of the set that stands in for AIME."""
    return Synthetic(name=name, families=families, difficulty=DIFFICULTY, size=size, split=split, seed=0)


def load_writer(device: str, numerics: str = "fast") -> PlainTarget:
    """Loads the bundled writer, in float32 on every device: its texts are then the same."""
    source = find_model(PATH).source
    tokenizer = load_tokenizer(source)
    return PlainTarget(
        HFBackend.from_pretrained(source, device=device, dtype="float32", numerics=numerics),
        tokenizer,
        Prompt(PromptFormat(raw=PROMPT), tokenizer),
        MAX_TOKENS,
        eos_ids(source, tokenizer),
        TASK,
    )


def load_puppet(rig: ReportRig, numerics: str = "fast") -> tuple[PlainTarget, Puppet]:
    """Returns a target whose texts are the writer's and whose rounds cost those of a 7B, and that puppet."""
    writer = load_writer(str(rig.device), numerics)
    shape = find_shape(rig.pick("qwen2.5-7b", "miniature"))
    puppet = writer.attach_body(shape, dtype=str(rig.dtype).removeprefix("torch."))
    return replace(writer, backend=puppet), puppet
