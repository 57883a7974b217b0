"""What the tokens of a search cost, where a server or a vendor has a price for them."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.core import Usage
from decoding.validation import require_number

MAX_PRICE = 1e6
MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TokenPrices:
    """Prices of a million tokens, in any currency. `cached` is that of input tokens found in a prefix cache.

    Raises: ValueError naming the price.

    >>> usage = Usage(prompt_tokens=3000, cached_tokens=1000, tokens=500)
    >>> TokenPrices(input=1.0, output=4.0, cached=0.5).cost_of(usage)
    0.0045
    """

    input: float
    output: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached"):
            if name != "cached" or self.cached is not None:
                require_number(f"prices.{name}", getattr(self, name), low=0, high=MAX_PRICE)

    def cost_of(self, usage: Usage) -> float:
        """Returns the price of what a search sent and generated, discarded tokens included, to twelve decimals."""
        fresh = usage.prompt_tokens - usage.cached_tokens
        cached = self.input if self.cached is None else self.cached
        generated = usage.tokens + usage.discarded_tokens
        return round((fresh * self.input + usage.cached_tokens * cached + generated * self.output) / MILLION, 12)
