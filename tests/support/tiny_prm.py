"""Reward models of two layers with random weights, in the layouts of the hub, and a reader without a cache.

The tokenizers are trained on a few lines, with the pre-tokenizer, special tokens and chat templates of the models
they stand for. Every checkpoint comes with a plain function from token ids to outputs, made of transformers'
modules before they are saved: what our own loading and reading is compared with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
)

from decoding.core import Tokens

CORPUS = [
    "How many apples does Sam have? Let x = 12. Then 2x + 7 = 31, so Sam has 31 apples.",
    "Step 1: The total is 5+8 = 13. Step 2: we subtract 4 - 2 = 2 and get \\boxed{11}.",
    "The answer is: 52. We know that $a^2 + b^2 = c^2$, hence c = 5.",
    "user assistant system Please reason step by step, and put your final answer within \\boxed{}.",
] * 3

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_CHAT = (
    "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023<|eot_id|>"
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

Outputs = Callable[[Sequence[int]], np.ndarray]


@dataclass(frozen=True)
class Tiny:
    """A saved checkpoint, and its head outputs `[T, outputs]` for whole sequences."""

    folder: Path
    tokenizer: PreTrainedTokenizerFast
    outputs: Outputs


def byte_tokenizer(special: Sequence[str], chat: str | None = None, **known: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE as in Qwen and Llama 3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=450, initial_alphabet=alphabet, special_tokens=list(special))
    tokenizer.train_from_iterator([*CORPUS, "\n\n", ".\n\n"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=chat, **known)


def sentence_piece_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """BPE over whole texts with a mark for spaces, also before the text, and bytes for the rest: as in Mistral."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    lines = [*CORPUS, *(f"a {word}" for word in words for _ in range(50))]
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=500, special_tokens=specials))
    model = json.loads(trained.to_str())["model"]
    bpe = models.BPE(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 512,
}


def qwen_config(tokenizer: PreTrainedTokenizerFast, **more: Any) -> Qwen2Config:
    return Qwen2Config(vocab_size=len(tokenizer), **SIZES, **more)


def llama_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(vocab_size=len(tokenizer), **SIZES)


def mistral_config(tokenizer: PreTrainedTokenizerFast) -> MistralConfig:
    return MistralConfig(vocab_size=len(tokenizer), sliding_window=512, **SIZES)


def save_with_head(folder: Path, tokenizer: PreTrainedTokenizerFast, architecture: str, head: nn.Module) -> Tiny:
    """A Qwen2 trunk and a head that transformers has no class for, as the hub has them: remote code named in
    config.json (it must not run), and a language-model head left in the weights."""
    torch.manual_seed(7)
    config = qwen_config(tokenizer)
    trunk = Qwen2Model(config).eval()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.5)
    folder.mkdir(parents=True)
    weights = {f"model.{name}": tensor for name, tensor in trunk.state_dict().items()}
    weights |= {name: tensor.contiguous() for name, tensor in head.state_dict().items()}
    weights["lm_head.weight"] = torch.zeros(config.vocab_size, config.hidden_size)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    described = config.to_dict() | {
        "architectures": [architecture],
        "auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModel": "modeling_x.XModel"},
    }
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    tokenizer.save_pretrained(folder)
    read = next(iter(head.children()))

    def outputs(tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            hidden = trunk(torch.tensor([list(tokens)])).last_hidden_state[0]
            layers = read.children() if isinstance(read, nn.ModuleDict) else [read]
            for layer in layers:
                hidden = layer(hidden)
            return np.asarray(hidden)

    return Tiny(folder, tokenizer, outputs)


def save_model(folder: Path, tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig, kind: Any) -> Tiny:
    """A model transformers has a class for; `kind` is an auto class."""
    torch.manual_seed(7)
    model = kind.from_config(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    def outputs(tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(model(torch.tensor([list(tokens)])).logits[0])

    return Tiny(folder, tokenizer, outputs)


def save_causal(folder: Path, tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig) -> Tiny:
    return save_model(folder, tokenizer, config, AutoModelForCausalLM)


def save_classifier(folder: Path, tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig) -> Tiny:
    return save_model(folder, tokenizer, config, AutoModelForTokenClassification)


def save_outcome(folder: Path, tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig) -> Tiny:
    """A sequence classifier; its outputs are those of the whole text, `[1, labels]`."""
    tiny = save_model(folder, tokenizer, config, AutoModelForSequenceClassification)
    return Tiny(folder, tokenizer, lambda tokens: np.atleast_2d(tiny.outputs(tokens)))


class PlainReader:
    """A `Reader` that runs every sequence by itself and whole, with the modules of transformers.

    trunk  the weights, under the names of transformers
    """

    def __init__(self, folder: Path, trunk: nn.Module, head: nn.Module) -> None:
        self.trunk, self.head = AutoModel.from_pretrained(folder, dtype=torch.float32), head
        self.trunk.load_state_dict(trunk.state_dict())

    async def encode(self, sequences: Sequence[Tokens], starts: Sequence[int]) -> list[np.ndarray]:
        with torch.no_grad():
            return [
                self.head(self.trunk(torch.tensor([tokens])).last_hidden_state[0, start:]).float().numpy()
                for tokens, start in zip(sequences, starts, strict=True)
            ]
