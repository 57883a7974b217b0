"""The table of all behaviours of a hostile server, by name; the modules beside this one have the rows."""

from __future__ import annotations

from tests.support import (
    hostile_behaviours_connection,
    hostile_behaviours_content,
    hostile_behaviours_framing,
    hostile_behaviours_reply,
    hostile_behaviours_status,
)
from tests.support.hostile_exchange import Behaviour

_ROWS: tuple[Behaviour, ...] = (
    *hostile_behaviours_connection.ROWS,
    *hostile_behaviours_framing.ROWS,
    *hostile_behaviours_status.ROWS,
    *hostile_behaviours_content.ROWS,
    *hostile_behaviours_reply.ROWS,
)

BEHAVIOURS: dict[str, Behaviour] = {row.name: row for row in _ROWS}

assert len(BEHAVIOURS) == len(_ROWS), "two behaviours have one name"
