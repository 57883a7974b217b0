"""Rules of planning-guided decoding: the tree of tokens and the bound by which it is searched (arXiv 2303.05510). Pure.

The bound and its constants are those of the paper and of its authors' release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from decoding.core import FinishReason, Generation, TokenIds, Vector


@dataclass(frozen=True)
class LikelyRow:
    """What the model would write next: the most likely tokens, best first, and all that a generation says of them.

    ids, logprobs  of the likely tokens, as a row of `Generation.top_ids` and `Generation.top_logprobs`
    entropy        in nats
    """

    ids: TokenIds
    logprobs: Vector
    entropy: float

    @property
    def by_id(self) -> dict[int, float]:
        """The log-probabilities of the likely tokens."""
        return dict(zip(self.ids.tolist(), self.logprobs.tolist(), strict=True))

    def list_priors(self, width: int) -> list[tuple[int, float]]:
        """Returns the `width` most likely tokens and their probabilities among these.

        >>> likely = LikelyRow(np.array([7, 8, 9]), np.log(np.array([0.6, 0.2, 0.1], dtype=np.float32)), 0.9)
        >>> [(token, round(prior, 3)) for token, prior in likely.list_priors(2)]
        [(7, 0.75), (8, 0.25)]
        """
        pairs = [
            (int(token), math.exp(logprob))
            for token, logprob in zip(self.ids[:width], self.logprobs[:width], strict=True)
            if token >= 0
        ]
        total = math.fsum(probability for _, probability in pairs) or 1.0
        return [(token, probability / total) for token, probability in pairs]


@dataclass
class Place:
    """A beginning of a solution, token by token.

    logprob        log-probability of its last token
    next_tokens    what comes next; None where no generation passed here
    finish         why nothing comes next; None: something does
    solution       leaf of the greedy completion from here, once it is written; a leaf that is no node: there is none
    visits         simulations that passed here or ended here, the one that made it included
    returns        simulations through the token that leads here, running ones included
    best           highest value of these; None: no value yet
    is_expanded    whether a simulation has ended here, so that the next one goes on to a token behind it
    """

    logprob: float = 0.0
    next_tokens: LikelyRow | None = None
    finish: FinishReason | None = None
    solution: int | None = None
    visits: int = 1
    returns: int = 0
    best: float | None = None
    is_expanded: bool = False
    below: dict[int, Place] = field(default_factory=dict)


def token_bound(place: Place, below: Place | None, prior: float, *, base: float, exploration: float) -> float:
    """Returns the bound of a token: the best value behind it, and what may still be found there (P-UCB).

    best + (ln((N + base + 1) / base) + exploration) prior sqrt(ln N) / (1 + n), with N visits of the place and n
    simulations through the token. A token without a value has 0.

    >>> token_bound(Place(visits=1), None, 0.5, base=10.0, exploration=4.0)
    0.0
    >>> round(token_bound(Place(visits=9), Place(returns=3, best=0.25), 0.5, base=10.0, exploration=4.0), 4)
    1.1196
    """
    value = 0.0 if below is None or below.best is None else below.best
    weight = math.log((place.visits + base + 1) / base) + exploration
    count = 0 if below is None else below.returns
    return value + weight * prior * math.sqrt(math.log(place.visits)) / (1 + count)


def choose_token(place: Place, *, width: int, base: float, exploration: float) -> int:
    """Returns the token with the highest bound among the `width` most likely ones; of equals, the more likely.

    Raises: ValueError where it is not known what comes next.
    """
    if place.next_tokens is None:
        raise ValueError("no generation passed this place, so its likely tokens are not known")
    priors = place.next_tokens.list_priors(width)
    bounds = [
        token_bound(place, place.below.get(token), prior, base=base, exploration=exploration) for token, prior in priors
    ]
    return priors[bounds.index(max(bounds))][0]


def read_next_tokens(generation: Generation) -> list[LikelyRow]:
    """Returns what came next at the place of each token of a generation. Raises: ValueError if it does not say."""
    top, ids, entropies = generation.top_logprobs, generation.top_ids, generation.entropies
    if top is None or ids is None or entropies is None:
        raise ValueError("search=pg_td needs the ids of likely tokens, and this engine measured none")
    return [LikelyRow(ids[i], top[i], float(entropies[i])) for i in range(len(generation.tokens))]


def write_given(places: Sequence[Place], tokens: Sequence[int]) -> Generation:
    """Returns given tokens as the beginning of a generation; `places` are those before each of them, and the last."""
    known = [place.next_tokens for place in places[:-1]]
    rows = [likely for likely in known if likely is not None]
    is_measured = len(rows) == len(tokens) > 0
    return Generation(
        tokens=tuple(tokens),
        logprobs=tuple(place.logprob for place in places[1:]),
        finish=places[-1].finish or "length",
        top_logprobs=np.stack([likely.logprobs for likely in rows]) if is_measured else None,
        top_ids=np.stack([likely.ids for likely in rows]) if is_measured else None,
        entropies=np.array([likely.entropy for likely in rows], dtype=np.float32) if is_measured else None,
    )
