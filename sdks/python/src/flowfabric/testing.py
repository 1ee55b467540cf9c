"""Tests against the real server: it is started for the test, keeps everything in memory, and its clock stands still
until the test moves it.

    with Server() as server, server.client() as client:
        sleeper = client.submit(nap)
        server.until_idle()
        server.advance(hours=1)
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import httpx
from typing_extensions import Self

from . import wire
from ._sync import Client
from .client import AsyncClient

#: A server that does not answer after this time has not started, and one that has not ended is killed.
PATIENCE_S = 30.0


class Server:
    """A server of its own for a test. Without a `store` it is `ff dev --memory --test-clock`; with one it is
    `ff server`, on real time. The program is `ff` from `FF_PROGRAM`, or from the path."""

    def __init__(
        self, store: str | None = None, *, options: Sequence[str] = (), environment: Mapping[str, str] = {}
    ) -> None:
        found = os.environ.get("FF_PROGRAM") or shutil.which("ff")
        if not found:
            raise FileNotFoundError("the program ff was not found; name it in FF_PROGRAM")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        how = ["dev", "--memory", "--test-clock"] if store is None else ["server", "--store", store]
        self._command = [found, *how, "--listen", address, *options]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FF_")}
        self._environment = {**inherited, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self._process = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE_S
        with httpx.Client(trust_env=False) as client:
            while True:
                if self._process.poll() is not None:
                    raise RuntimeError(f"the server ended with {self._process.returncode} when it was started")
                try:
                    if client.get(f"{self.url}/livez", timeout=2).is_success:
                        return
                except httpx.TransportError:
                    if time.monotonic() > until:
                        self.kill()
                        raise
                time.sleep(0.02)

    def stop(self) -> None:
        """Lets it end in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it as a crash does; `start` starts it again at the same address."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Moves its clock, and waits until what became due on the way has happened."""
        span = timedelta(days, seconds, 0, 0, minutes, hours)
        with self.client() as client:
            client.call(wire.advance_test_clock, advance_ms=round(span.total_seconds() * 1000))

    def until_idle(self, timeout: float = 30.0) -> None:
        """Waits until nothing happens any more by itself: nothing is leased or claimable, and no timer is due."""
        with self.client() as client:
            idle = client.call(wire.wait_until_idle, timeout_ms=round(timeout * 1000))
        if not idle.idle:
            raise TimeoutError(f"the server is busy: {idle.leased} leased, {idle.claimable} claimable, {idle.due} due")

    def client(self, **options: Any) -> Client:
        """A client of it."""
        return Client(self.url, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """A client of it for a program with an event loop."""
        return AsyncClient(self.url, **options)
