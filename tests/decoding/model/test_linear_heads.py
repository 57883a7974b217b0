"""Every linear layer of a head is replaced, at any depth, or the head is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from decoding.model.linear_heads import make_invariant_layer, replace_linears


def count_linears(head: object) -> int:
    assert isinstance(head, nn.Module)
    return sum(isinstance(layer, nn.Linear) for layer in head.modules())


@pytest.mark.parametrize("must", [True, False])
def test_layers_within_parts_are_replaced_too(must: bool) -> None:
    torch.manual_seed(0)
    twice = nn.Linear(4, 4)
    head = nn.Sequential(nn.Sequential(twice, nn.ReLU(), nn.Sequential(twice)), nn.Dropout(0), nn.Linear(4, 2))
    hidden = torch.randn(5, 4)
    expected = head(hidden).detach()
    replaced = replace_linears(head, make_invariant_layer, must=must)
    assert count_linears(replaced) == 0
    torch.testing.assert_close(replaced(hidden), expected)


def test_a_part_with_other_weights_is_refused_or_stays() -> None:
    head = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)))
    with pytest.raises(ValueError, match="numerics=invariant cannot run a head of the type LayerNorm"):
        replace_linears(head, make_invariant_layer, must=True)
    head = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    assert count_linears(replace_linears(head, make_invariant_layer, must=False)) == 0
    assert isinstance(head[1], nn.LayerNorm)
