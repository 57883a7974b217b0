"""Holds what cards can do at most: bytes and operations per second."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.validation import is_number

# Shares of a data sheet's figures that programs reach. Measured: an H100 copies 3.0 of 3.35 TB/s and multiplies at 0.79
# of 0.989 PFLOPS, an H200 4.3 of 4.8 TB/s and 0.78 PFLOPS. Taken for the other cards as well.
_BANDWIDTH_SHARE, _PEAK_SHARE = 0.9, 0.8


@dataclass(frozen=True)
class Card:
    """A card: bytes per second of memory, and bfloat16 operations per second, both as reached.

    Raises: ValueError for figures that are no positive numbers.
    """

    name: str
    bandwidth: float
    peak: float

    def __post_init__(self) -> None:
        for name in ("bandwidth", "peak"):
            if not is_number(getattr(self, name), low=1):
                raise ValueError(f"{name} of a card must be at least 1 per second, got {getattr(self, name)}")

    @classmethod
    def from_data_sheet(cls, name: str, terabytes: float, teraflops: float) -> Card:
        """Returns a card with the share of a data sheet's figures that programs reach."""
        return cls(name, terabytes * 1e12 * _BANDWIDTH_SHARE, teraflops * 1e12 * _PEAK_SHARE)

    def minimum_seconds(self, bytes_moved: float, flops: float) -> float:
        """Returns the time that moving so many bytes and computing so many operations takes at least."""
        return max(bytes_moved / self.bandwidth, flops / self.peak)


# Dense bfloat16, without sparsity, from NVIDIA's data sheets of the H100 SXM, H200 SXM, A100 80GB SXM and L4.
CARDS = {
    card.name: card
    for card in (
        Card.from_data_sheet("h100", 3.35, 989),
        Card.from_data_sheet("h200", 4.8, 989),
        Card.from_data_sheet("a100", 2.039, 312),
        Card.from_data_sheet("l4", 0.3, 121),
    )
}


def make_card(name: str, terabytes: float | None, teraflops: float | None) -> Card:
    """Returns a card with these figures, as reached. Raises: ValueError where one is missing or not positive."""
    if terabytes is None or teraflops is None:
        raise ValueError("a card needs a bandwidth and a peak: set both")
    return Card(name, terabytes * 1e12, teraflops * 1e12)


def find_card(name: str) -> Card:
    """Returns one of `CARDS`. Raises: ValueError naming the valid ones."""
    if name not in CARDS:
        raise ValueError(f"card must be one of {', '.join(CARDS)}, or have a bandwidth and a peak; got {name}")
    return CARDS[name]
