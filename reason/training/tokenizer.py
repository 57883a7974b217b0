"""Trains the tokenizer of the bundled models: each digit, each word and the blank line between steps is one token."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from reason.tasks.synthetic.draw import draw_exercise
from reason.tasks.synthetic.exercise import ExactWriter
from reason.tasks.synthetic.families import FAMILIES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EOS = "<|endoftext|>"
PAD = "<|pad|>"
# One alternation: chained rules would split the blank line again.
_PIECES = r"\n\n|\n| ?\d| ?\p{L}+|[^\s\p{L}\d]|\s"


def render_prompt(question: str) -> str:
    """Returns the prompt that the bundled models were trained on."""
    return f"Question: {question}\nSolution:\n"


def build_tokenizer(num_problems: int = 12_000, min_frequency: int = 20) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer trained on training-split problems; deterministic."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=[EOS, PAD],
        min_frequency=min_frequency,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(num_problems), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, padding_side="left")


def _texts(count: int) -> Iterator[str]:
    rng = random.Random(0)
    weights = dict.fromkeys(FAMILIES, 1.0)
    for _ in range(count):
        exercise = draw_exercise(rng, "train", weights=weights)
        yield render_prompt(exercise.question) + exercise.write_solution(ExactWriter(), rng)
