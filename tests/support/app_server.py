"""Serves an application on a free port, in a thread."""

from __future__ import annotations

import threading
import time

import uvicorn
from fastapi import FastAPI

from reason.engines.launcher.server_command import find_free_port


class AppServer:
    """Serves `app` from its construction until `close`; its paths begin with /v1, as `url` ends with it."""

    def __init__(self, app: FastAPI) -> None:
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}/v1"
        self._server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
