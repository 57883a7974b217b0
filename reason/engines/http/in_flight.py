"""A request on its way to some server."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_PROGRESS_TOKENS = 256  # new tokens after which a loss is not the fault of the request itself


@dataclass
class InFlightRequest:
    """A request on its way, and what has happened to it; instants are those of `time.monotonic()`.

    problem       group of the request; its requests go to the same server
    is_expired    whether its deadline has passed, so that it is not sent again
    num_received  tokens of it that came in streams and are kept, whatever becomes of their server
    num_lost      responses lost so far, since it last got on by hundreds of tokens
    lost_by       the servers that lost them
    rejected_by   the server that rejected it while others might not
    rejection     what that server said
    stuck_since   first of the errors in a row that found no server, or full ones only; None after any other event
    """

    problem: str = ""
    is_expired: bool = False
    num_received: int = 0
    num_lost: int = 0
    lost_by: set[object] = field(default_factory=set)
    rejected_by: set[object] = field(default_factory=set)
    rejection: ValueError | None = None
    stuck_since: float | None = None
    started_at: float = field(default_factory=time.monotonic)
    received_at_loss: int = 0

    def record_loss(self, server: object) -> None:
        """Notes that a server lost a response. *Mutates*."""
        # A request that breaks its servers does not get far with them; one of an hour may lose several fairly.
        if self.num_received - self.received_at_loss >= _PROGRESS_TOKENS:
            self.num_lost, self.lost_by = 0, set()
        self.num_lost, self.received_at_loss, self.stuck_since = self.num_lost + 1, self.num_received, None
        self.lost_by.add(server)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request was made."""
        return time.monotonic() - self.started_at

    @property
    def avoided(self) -> set[object]:
        """The servers that it is sent to again only where no other one works."""
        return self.lost_by | self.rejected_by
