"""Turn a language model into a reward model: fresh layers on top that compare what came with what was expected."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

_SHARPNESS = 8.0  # of a look at one position: the others together get less than a hundredth of the attention
_LOUDNESS = 2.0  # of what the first judging layer writes, in units of what the trunk wrote before


def verifier_on(trunk: Any, judging_layers: int, sample_NT: torch.Tensor) -> Any:
    """A two-label token classifier (0 wrong, 1 right): `trunk`, frozen, with `judging_layers` trainable layers on it.

    The top of the trunk knows which token it expected next; from the following position that can be compared with
    the token that came. A fresh layer does not find this by itself in a few million tokens: what is left of the token
    itself is hundreds of times fainter than the rest of the trunk's top. So the first judging layer begins with the
    comparison laid out: one head reads the token at this position, one what was expected at the position before.
    What to make of the two, and of all that came before, is learned. `sample_NT` are token ids to fit that reading on.

    Frozen, the trunk keeps its arithmetic, and training costs half as much.
    """
    from transformers import LlamaForTokenClassification

    config = deepcopy(trunk.config)
    quiet = 1 / _loudness(trunk, sample_NT)
    config.rms_norm_eps *= quiet**2
    depth = config.num_hidden_layers
    config.num_hidden_layers = depth + judging_layers
    config.architectures = ["LlamaForTokenClassification"]
    config.num_labels = 2
    config.id2label, config.label2id = {0: "wrong", 1: "right"}, {"wrong": 0, "right": 1}
    config.classifier_dropout = 0.0
    model: Any = LlamaForTokenClassification(config)
    model.model.load_state_dict(trunk.model.state_dict(), strict=False)
    _quieten(model.model, depth, quiet)
    for parameter in (model.model.embed_tokens, *model.model.layers[:depth]):
        parameter.requires_grad_(False)
    for layer in model.model.layers[depth:]:
        torch.nn.init.zeros_(layer.self_attn.q_proj.weight)
        torch.nn.init.zeros_(layer.self_attn.k_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    _lay_out_comparison(model.model.layers[depth], trunk, sample_NT, model.model.rotary_emb.inv_freq)
    return model


@torch.no_grad()
def _top(trunk: Any, sample_NT: torch.Tensor) -> torch.Tensor:
    """What the last layer leaves, before the final norm `[N * T, hidden]`."""
    tops: list[torch.Tensor] = []
    hook = trunk.model.layers[-1].register_forward_hook(lambda _, __, out: tops.append(out))
    trunk(input_ids=sample_NT, use_cache=False)
    hook.remove()
    return tops[0].flatten(0, 1).double()


def _loudness(trunk: Any, sample_NT: torch.Tensor) -> float:
    return float(_top(trunk, sample_NT).pow(2).mean().sqrt())


@torch.no_grad()
def _quieten(body: Any, depth: int, factor: float) -> None:
    """Scales all that the trunk writes, so that fresh layers can be heard. Norms undo it: its outputs do not change."""
    body.embed_tokens.weight.mul_(factor)
    for layer in body.layers[:depth]:
        layer.self_attn.o_proj.weight.mul_(factor)
        layer.mlp.down_proj.weight.mul_(factor)


@torch.no_grad()
def _lay_out_comparison(layer: Any, trunk: Any, sample_NT: torch.Tensor, frequency_F: torch.Tensor) -> None:
    """Head 0 writes which of the D most frequent tokens stands here, head 1 how much each was expected here."""
    attention, width = layer.self_attn, layer.self_attn.head_dim
    top = _top(trunk, sample_NT)
    normed = top / top.pow(2).mean(-1, keepdim=True).sqrt()
    ids = sample_NT.flatten()
    frequent = ids.bincount(minlength=trunk.config.vocab_size).topk(width).indices
    came = (ids[:, None] == frequent).double()
    ridge = 1e-6 * len(ids) * torch.eye(normed.shape[1], dtype=torch.double)
    read_token = torch.linalg.solve(normed.T @ normed + ridge, normed.T @ came).T  # [D, hidden]
    expect = trunk.model.embed_tokens.weight[frequent] * trunk.model.norm.weight  # logits are linear in the top
    expected = normed @ expect.double().T

    for weight in (attention.v_proj.weight, attention.o_proj.weight):
        weight.zero_()
    attention.v_proj.weight[:width] = read_token.float()
    attention.v_proj.weight[width : 2 * width] = expect / expected.std()
    loud = _LOUDNESS * torch.ones(width)
    attention.o_proj.weight[: 2 * width, : 2 * width] = torch.diag(torch.cat([2 * loud, loud]))
    for head, distance in ((0, 0), (1, 1)):
        _look(attention, head, distance, frequency_F)
    # One unit of the mixing part for every token: open if it came, worth what was expected of it.
    mixing = layer.mlp
    mixing.gate_proj.weight[:width].zero_()
    mixing.up_proj.weight[:width].zero_()
    mixing.gate_proj.weight[:width, :width] = 2 * torch.eye(width)
    mixing.up_proj.weight[:width, width : 2 * width] = torch.eye(width)


def _look(attention: Any, head: int, distance: int, frequency_F: torch.Tensor) -> None:
    """Sets a head's constant query and key so that, once rotated, they agree best `distance` positions apart.

    A rotary pair of frequency f contributes cos(f * (d - distance)) at distance d when the query's phase is
    -f * distance.
    """
    width = attention.head_dim
    apart = (1 - frequency_F.cos()).sum()  # how much less a neighbour of the wanted position scores
    size = (_SHARPNESS * width**0.5 / apart).sqrt()
    phase_F = frequency_F * distance
    rows = slice(head * width, (head + 1) * width)
    attention.k_proj.bias[rows] = size * torch.cat([torch.ones_like(frequency_F), torch.zeros_like(frequency_F)])
    attention.q_proj.bias[rows] = size * torch.cat([phase_F.cos(), -phase_F.sin()])
