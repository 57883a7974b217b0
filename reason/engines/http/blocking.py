"""One request from code that does not await, within limits like all others."""

from __future__ import annotations

from collections.abc import Mapping

from reason.engines.http.client import HttpSession
from reason.engines.http.reply import Reply, ReplyLimits


def fetch_blocking(
    method: str,
    server: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    total_s: float,
    api_key: str | None = None,
    max_bytes: int = 2**24,
) -> Reply:
    """Returns the reply of a server at a path, whatever its status; works inside and outside a running event loop.

    Raises: ServerUnreachable, or ResponseLost where the reply is not complete after `total_s`.
    """
    session = HttpSession(ReplyLimits(total_s=total_s, idle_s=total_s, max_bytes=max_bytes), api_key)
    try:
        (reply,) = session.probe_all([session.http.fetch(method, server, path, body)])
    finally:
        session.close()
    return reply
