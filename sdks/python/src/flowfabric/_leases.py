"""The leases of a worker, renewed by a thread of their own: a function that blocks the event loop keeps its lease."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from . import wire
from ._calls import RetryPolicy, Settings, log
from ._sync import Client
from .errors import Refused

#: Leases that one call renews.
RENEWALS_MAX = 1_000
#: Why a lease is lost whose time was up before it could be renewed.
EXPIRED = "expired"


@dataclass
class Lease:
    """One lease, and until when it lasts."""

    execution_id: str
    fence: dict[str, Any]
    ttl_s: float
    #: Told, in the thread, when the lease is lost.
    on_lost: Callable[[str], Any]
    #: When it runs out, as far as this process knows.
    until: float
    lost: str | None = None

    def lose(self, reason: str) -> None:
        """It is somebody else's by now."""
        if self.lost is None:
            self.lost = reason
            # Nobody is left to be told in a loop that is closed.
            with contextlib.suppress(RuntimeError):
                self.on_lost(reason)


class LeaseKeeper(threading.Thread):
    """Keeps a worker registered and renews its leases, all in one call, every third of their time."""

    def __init__(
        self, settings: Settings, registration: dict[str, Any], ttl_s: float, on_replaced: Callable[[], None]
    ) -> None:
        super().__init__(name="flowfabric-leases", daemon=True)
        self._settings = settings
        self._registration = registration
        self._period = ttl_s / 3
        self._on_replaced = on_replaced
        #: Other threads add and remove: it is read as a whole.
        self._held: dict[str, Lease] = {}
        self._stopping = threading.Event()

    def add(self, lease: Lease) -> None:
        """Renews it from now on."""
        self._held[lease.fence["lease_id"]] = lease

    def remove(self, lease: Lease) -> None:
        """Renews it no more."""
        self._held.pop(lease.fence["lease_id"], None)

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()

    def run(self) -> None:
        """The loop of the thread."""
        # A repeat or an answer that comes later than the next renewal is of no use.
        retry = RetryPolicy(max_backoff=self._period / 4, max_elapsed=self._period, answer_timeout=self._period)
        with Client(replace(self._settings, retry=retry)) as client:
            last = time.monotonic()
            while not self._stopping.wait(self._pause(last)):
                leases = self._living()
                for lease in leases:
                    # One whose time is up is lost, whatever the server would say.
                    if lease.until <= time.monotonic():
                        lease.lose(EXPIRED)
                # A registration lives twice as long as a lease, so an idle worker beats half as often.
                if time.monotonic() - last < self._period * (1 if leases else 1.5):
                    continue
                last = time.monotonic()
                for start in range(0, max(len(leases), 1), RENEWALS_MAX):
                    self._beat(client, leases[start : start + RENEWALS_MAX])

    def _pause(self, last: float) -> float:
        """Until the next beat, or until the first lease runs out that could not be renewed."""
        now = time.monotonic()
        ends = [lease.until - now for lease in self._living()]
        return max(0.001, min([self._period - (now - last) % self._period, *ends]))

    def _living(self) -> list[Lease]:
        return [lease for lease in list(self._held.values()) if lease.lost is None]

    def _beat(self, client: Client, leases: list[Lease]) -> None:
        asked_at = time.monotonic()
        try:
            outcomes = self._renew(client, [{"execution_id": one.execution_id, "fence": one.fence} for one in leases])
        except Exception as error:
            # Any error, such as a lack of memory: the next beat may succeed, and the leases depend on it.
            log.warning("a heartbeat failed: %s", str(error) or repr(error))
            return
        for lease, outcome in zip(leases, outcomes, strict=True):
            if outcome.outcome == "renewed":
                lease.until = asked_at + lease.ttl_s
            elif outcome.outcome == "lost":
                lease.lose(outcome.reason or "lost")

    def _renew(self, client: Client, renewals: list[dict[str, Any]]) -> list[wire.RenewalOutcome]:
        names = {name: self._registration[name] for name in ("instance_id", "nonce")}
        try:
            return client.call(wire.heartbeat_worker, **names, leases=renewals).leases
        except Refused as error:
            if error.code == "worker_not_found":
                log.warning("the worker's registration is gone; it registers again")
                client.call(wire.register_worker, **self._registration)
            elif error.code == "duplicate_worker_instance":
                log.error("another process has taken this worker's instance id; it claims nothing more")
                self._on_replaced()
            elif not renewals:
                raise
        # Leases are kept elsewhere than registrations: they may well be renewed.
        return client.call(wire.renew_leases, leases=renewals).results if renewals else []
