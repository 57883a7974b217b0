"""A hostile server as a program, for `make soak`: `python -m tests.support.hostile_program openai`.

Prints one line of JSON, its address and the names of its behaviours. Then it changes its behaviour to each name it
reads, and answers each with the number of connections it has accepted. It ends at the end of its input.
"""

from __future__ import annotations

import json
import sys
from typing import get_args

from tests.support.hostile_behaviours import BEHAVIOURS
from tests.support.hostile_replies import Dialect
from tests.support.hostile_server import HostileServer


def main(dialect: Dialect) -> None:
    names = [behaviour.name for behaviour in BEHAVIOURS.values() if dialect in behaviour.dialects]
    with HostileServer(dialect) as server:
        print(json.dumps({"url": server.url, "behaviours": names}), flush=True)
        for line in sys.stdin:
            server.behaviour = line.strip()
            print(server.num_connections, flush=True)


if __name__ == "__main__":
    (chosen,) = (name for name in get_args(Dialect) if name == sys.argv[1])
    main(chosen)
