"""Cases of reward-model formats: a tiny checkpoint in the hub's layout, an adapter, and a reference.

References encode the whole solution as one text, in one go, one solution at a time, without a cache, and pick scores by
token id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from reason.scorers.base import PrmAdapter
from reason.scorers.formats.math_shepherd import MathShepherd
from reason.scorers.formats.qwen import QwenPrm
from reason.scorers.formats.rlhflow import RlhflowPrm
from reason.scorers.formats.skywork import SkyworkPrm
from reason.scorers.formats.token_classification import TokenClassifier
from tests.support import tiny_prm as tiny

QUESTION = "How many apples does Sam have?"
SOLUTIONS = [
    ["Let x = 12.\n\n", "Then 2x + 7 = 31.\n\n", "The answer is \\boxed{31}."],
    ["Let x = 12.\n\n", "\\[ 2x \\]\n= 24\n\n", "5 apples.\n\n", "So c = 5; the answer is: 52"],
    ["Let x = 12.\n\n", "- first -\n\n", "\n\n", "  we get 4 - 2 = 2.\n\n"],
    ["+7\n\n", "ünïcode ки 数\n\n"],
]
Reference = Callable[[tiny.Tiny, str, Sequence[str]], list[float]]


@dataclass(frozen=True)
class FormatCase:
    adapter: PrmAdapter
    save: Callable[[Path], tiny.Tiny]
    reference: Reference


def softmax_at(outputs: np.ndarray, positions: Sequence[int], columns: Sequence[int]) -> list[float]:
    """Probability of the first of the columns."""
    picked = torch.tensor(outputs[list(positions)][:, list(columns)]).double()
    return picked.softmax(-1)[:, 0].tolist()


def where(tokens: Sequence[int], token: int) -> list[int]:
    return [i for i, t in enumerate(tokens) if t == token]


def flat(step: str) -> str:
    """Puts a step on one line."""
    return " ".join(filter(None, (line.strip() for line in step.split("\n"))))


# Qwen2.5-Math-PRM


def save_qwen(folder: Path) -> tiny.Tiny:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>"]
    tokenizer = tiny.byte_tokenizer(special, tiny.CHATML, pad_token="<|endoftext|>")
    score = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    return tiny.save_with_head(folder, tokenizer, "Qwen2ForProcessRewardModel", nn.ModuleDict({"score": score}))


def qwen_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    messages = [
        {"role": "system", "content": "Please reason step by step, and put your final answer within \\boxed{}."},
        {"role": "user", "content": question},
        {"role": "assistant", "content": "<extra_0>".join(s.strip() for s in steps) + "<extra_0>"},
    ]
    text = model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    tokens = model.tokenizer.encode(text)
    tags = where(tokens, model.tokenizer.convert_tokens_to_ids("<extra_0>"))
    return softmax_at(model.outputs(tokens), tags, [1, 0])


# Skywork-o1-Open-PRM


def save_skywork(folder: Path) -> tiny.Tiny:
    tokenizer = tiny.byte_tokenizer(["<|endoftext|>"], bos_token="<|endoftext|>")
    summary = nn.ModuleDict({"summary": nn.Linear(32, 1)})
    return tiny.save_with_head(folder, tokenizer, "Qwen2ForPrmModel", nn.ModuleDict({"v_head": summary}))


def skywork_reference(model: tiny.Tiny, question: str, steps: Sequence[str], step_token: str = "\n") -> list[float]:
    encode = model.tokenizer.encode
    tokens, ends = encode(f"{model.tokenizer.bos_token}{question}\n"), []
    for step in steps:
        tokens += [*encode(flat(step)), encode(step_token)[-1]]
        ends.append(len(tokens) - 1)
    return torch.tensor(model.outputs(tokens)[ends, 0]).double().sigmoid().tolist()


# Math-Shepherd


def save_shepherd(folder: Path) -> tiny.Tiny:
    tokenizer = tiny.sentence_piece_tokenizer(["ки", "+", "-"])
    return tiny.save_causal(folder, tokenizer, tiny.mistral_config(tokenizer))


def shepherd_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    lines = [f"{flat(step)} ки" for step in steps]
    tokens = [model.tokenizer.bos_token_id, *model.tokenizer.encode(f"{question} " + "\n".join(lines))]
    words = model.tokenizer.convert_tokens_to_ids(["▁+", "▁-"])
    tags = where(tokens, model.tokenizer.convert_tokens_to_ids("▁ки"))
    newline = model.tokenizer.convert_tokens_to_ids("<0x0A>")  # a tag inside a step is not the end of one
    tags = [i for i in tags if i + 1 == len(tokens) or tokens[i + 1] == newline]
    return softmax_at(model.outputs(tokens), tags, words)


# RLHFlow


def save_rlhflow(folder: Path) -> tiny.Tiny:
    special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = tiny.byte_tokenizer(special, tiny.LLAMA_CHAT, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
    return tiny.save_causal(folder, tokenizer, tiny.llama_config(tokenizer))


def rlhflow_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    words = [model.tokenizer.encode("+")[-1], model.tokenizer.encode("-")[-1]]
    scores: list[float] = []
    conversation: list[dict[str, str]] = []
    for i, step in enumerate(steps):
        text = f"{question} {step.strip()}" if i == 0 else step.strip()
        conversation += [{"role": "user", "content": text}, {"role": "assistant", "content": "+"}]
        tokens = model.tokenizer.encode(model.tokenizer.apply_chat_template(conversation, tokenize=False))
        assert tokens[-2] == words[0], "the answer is the last word but one"
        scores += softmax_at(model.outputs(tokens), [len(tokens) - 3], words)
    return scores


# Token classification, trained with TRL


def save_trl(folder: Path) -> tiny.Tiny:
    tokenizer = tiny.byte_tokenizer(["<|endoftext|>"], eos_token="<|endoftext|>")
    return tiny.save_classifier(folder, tokenizer, tiny.qwen_config(tokenizer, num_labels=2))


def trl_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    encode = model.tokenizer.encode
    tokens, ends = encode(question) + encode("\n\n"), []
    for step in steps:
        tokens += encode(step.strip()) + encode("\n\n")
        ends.append(len(tokens) - 1)
    return softmax_at(model.outputs(tokens), ends, [1, 0])


# Token classification over the writer's own tokens, of steps and (the bundled model) of tokens


def shared_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    tokens, ends = model.tokenizer.encode(question), []
    for step in steps:
        tokens += model.tokenizer.encode(step)
        ends.append(len(tokens) - 1)
    return softmax_at(model.outputs(tokens), ends, [1, 0])


def judged_reference(model: tiny.Tiny, question: str, steps: Sequence[str]) -> list[float]:
    tokens = model.tokenizer.encode(question)
    start, scores = len(tokens), []
    for step in steps:
        tokens += model.tokenizer.encode(step)
        scores.append(float(np.prod(softmax_at(model.outputs(tokens), range(start, len(tokens)), [1, 0]))))
    return scores


CASES = {
    "qwen": FormatCase(QwenPrm(), save_qwen, qwen_reference),
    "skywork": FormatCase(SkyworkPrm(), save_skywork, skywork_reference),
    "math_shepherd": FormatCase(MathShepherd(), save_shepherd, shepherd_reference),
    "rlhflow": FormatCase(RlhflowPrm(), save_rlhflow, rlhflow_reference),
    "trl": FormatCase(TokenClassifier(), save_trl, trl_reference),
    "shared": FormatCase(TokenClassifier(reads="tokens"), save_trl, shared_reference),
    "judged": FormatCase(TokenClassifier(reads="tokens", judges="tokens"), save_trl, judged_reference),
}
