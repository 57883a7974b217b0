"""Check what an OpenAI-compatible server does with our requests: see `reason.bench.peers.server_matrix`."""

from __future__ import annotations

import sys

from reason.bench.peers.server_matrix import main

if __name__ == "__main__":
    sys.exit(main())
