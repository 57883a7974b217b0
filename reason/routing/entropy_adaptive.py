"""Routes tokens by the rolling entropy of the model that writes: entropy-adaptive decoding (EAD)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from decoding.core import MAX_NUM_TOP, Generation
from decoding.validation import require_count, require_not_negative
from reason.routing.base import StepAuthor
from reason.routing.handover import HandoverRouter, Review, Turn


@dataclass(frozen=True, kw_only=True)
class EntropyAdaptiveRouter(HandoverRouter):
    """The target model writes while the mean entropy of the last tokens is above `threshold`, the small model else.

    threshold   nats
    window      tokens in the mean
    min_stay    tokens that a model writes before it can hand over
    chunk       tokens that are generated at once where fewer are certain to stay; what of them is beyond a handover is
                discarded, and counted as `discarded_tokens`. With 1 there are none
    num_top     likely tokens that a server sends, of which the entropy is: one alone never has more than .37 nats

    As in EAD nothing that was written before a handover is changed, so its text is that of both models token by token,
    whatever the chunk. Up to `min_stay`, and while the target model's last entropies keep the mean above the threshold
    even if zeros follow, tokens are certain to stay and come in one request; behind that there is one for each chunk.
    Each request begins with the small model: with a search over steps, each step.
    """

    threshold: float = 1.0
    window: int = 8
    min_stay: int = 8
    chunk: int = 1
    num_top: int = MAX_NUM_TOP  # type: ignore[misc]  # a setting of this router alone

    def __post_init__(self) -> None:
        require_not_negative("threshold", self.threshold)
        for name in ("window", "min_stay", "chunk"):
            require_count(name, getattr(self, name), at_least=1)
        require_count("num_top", self.num_top, at_least=1, at_most=MAX_NUM_TOP)

    def start(self, path_text: str) -> _RollingEntropy:
        """See `HandoverRouter`."""
        del path_text
        return _RollingEntropy(self)


class _RollingEntropy:
    """Implements `handover.Handover`."""

    def __init__(self, router: EntropyAdaptiveRouter) -> None:
        self._router = router
        self._author: StepAuthor = "draft"
        self._latest: deque[float] = deque(maxlen=router.window)
        self._stay = 0

    def begin(self) -> Turn:
        """See `Handover`."""
        return Turn(self._author, max(self._router.chunk, self._count_certain()))

    def _count_certain(self) -> int:
        """Returns how many tokens the model writes before it can hand over, whatever their entropies are."""
        router, count = self._router, max(1, self._router.min_stay - self._stay)
        if self._author == "draft":  # one token of high entropy is enough
            return count
        latest = deque((*self._latest, *[0.0] * count), maxlen=router.window)
        while sum(latest) / len(latest) > router.threshold:
            latest.append(0.0)
            count += 1
        return count

    def review_turn(self, generation: Generation, text: str) -> Review:
        """See `Handover`."""
        del text
        if not generation.tokens:  # the deadline came first
            return Review(0, self.begin())
        if generation.entropies is None:
            raise ValueError("router=entropy_adaptive reads entropies, and these tokens came without log-probabilities")
        mean = None
        for i, entropy in enumerate(generation.entropies.tolist()):
            self._latest.append(entropy)
            self._stay += 1
            mean = sum(self._latest) / len(self._latest)
            is_unsure = mean > self._router.threshold
            if self._stay >= self._router.min_stay and is_unsure == (self._author == "draft"):
                self._author = "target" if is_unsure else "draft"
                self._stay = 0
                return Review(i + 1, self.begin(), mean)
        return Review(len(generation.tokens), self.begin(), mean)
