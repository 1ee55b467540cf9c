"""The journal as one run of a function knows it: the entries there are, those being recorded, and the open waits.

A function that is called again from its first line finds here the results of its steps. When every branch of it waits,
its task is parked: the lease is let go, and the function is unwound.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from pydantic_core import to_json

from . import wire
from ._batches import Gatherer, settle
from .errors import Parked, Refused, TaskError, is_final

if TYPE_CHECKING:
    from ._run import Run

T = TypeVar("T")

#: Entries in one call, and their bytes, of which the server takes 16 MiB; and records in one page.
RECORD_MAX = 100
RECORD_MAX_BYTES = 8 * 1024 * 1024
PAGE_MAX = 1_000
#: Entries that one ending names.
NAMED_MAX = 100
#: Turns of the event loop in which nothing happens before a function counts as waiting: a branch that was just woken
#: needs some to get to its next call.
QUIET_TURNS = 10
#: Whether the body of a step runs.
IN_STEP: ContextVar[bool] = ContextVar("flowfabric_in_step", default=False)


class Identity(NamedTuple):
    """Which entry: its name, and its key or how many calls of the name came before it."""

    name: str
    key: str | None
    occurrence: int | None

    def args(self) -> dict[str, Any]:
        """The same in the words of the API."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @classmethod
    def of(cls, entry: wire.StepView) -> Identity:
        """Which entry a record speaks of."""
        return cls(entry.name, entry.key, (entry.occurrence or 0) if entry.key is None else None)

    @property
    def label(self) -> str:
        """The same for people."""
        if self.key is not None:
            return f"{self.name}[{self.key}]"
        return self.name if not self.occurrence else f"{self.name}#{self.occurrence}"


@dataclass
class Wait:
    """Something that a branch waits for: what stands for it in a list of `park`, and the branch."""

    list_name: str
    args: dict[str, Any]
    ended: asyncio.Future[wire.StepView]


class Journal:
    """The journal of the task in hand."""

    def __init__(self, run: Run) -> None:
        self._run = run
        known = run.task.journal
        self._entries: dict[Identity, wire.StepView] = {}
        self.next_number = max(known.next_number, 1) if known else 1
        self._complete = known.complete if known else True
        self._note(known.entries if known else [])
        self._counts: dict[str, int] = {}
        self._visited: set[Identity] = set()
        #: Entries with a key that stand although this run gave them another input.
        self.changed: set[Identity] = set()
        #: Names without a key whose last call has not ended.
        self._unfinished: set[str] = set()
        self._records: Gatherer[dict[str, Any], int] = Gatherer(self._send, RECORD_MAX)
        self._reading = asyncio.Lock()
        self._waits: dict[Identity, Wait] = {}
        #: What runs that a park would interrupt; and a number that grows with everything that a branch does.
        self._busy = self._activity = 0
        self._check: asyncio.Handle | None = None
        self._parking: asyncio.Task[None] | None = None
        self.closed = False

    # Calls

    def call(self, name: str, key: str | None, body: Callable[[Identity], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        """A call of an entry, which is counted when it is made and ends with what is awaited."""
        identity = self.begin(name, key)

        async def run() -> T:
            try:
                return await body(identity)
            finally:
                self.end(identity)

        return run()

    def begin(self, name: str, key: str | None) -> Identity:
        """Counts a call when it is made, not when it is first awaited: that is the order of the code."""
        if self.closed:
            raise Parked
        self._activity += 1
        occurrence = None
        if key is None:
            if name in self._unfinished:
                reason = f"another call of step {name!r} has not ended; give each a key"
                raise TaskError(reason, category="step_key_required")
            self._unfinished.add(name)
            occurrence = self._counts.get(name, 0)
            self._counts[name] = occurrence + 1
        identity = Identity(name, key, occurrence)
        if identity in self._visited:
            raise TaskError(f"step {identity.label} is called twice in one run", category="duplicate_step")
        self._visited.add(identity)
        return identity

    def end(self, identity: Identity) -> None:
        """A call without a key ends with this."""
        self._activity += 1
        if identity.key is None:
            self._unfinished.discard(identity.name)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Something runs that a park would interrupt."""
        self._busy += 1
        self._activity += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._activity += 1
            self._consider_parking()

    # Entries

    async def find(self, identity: Identity, kind: str = "step", input_hash: str | None = None) -> wire.StepView | None:
        """An entry as the journal has it. The rest of a large journal is read when it is first asked for. Under a
        counted identity another kind or input means that the code has changed under it, and a person is asked."""
        await self._gate()
        if not self._complete:
            with self.busy():
                async with self._reading:
                    await self._read_rest()
        known = self._entries.get(identity)
        if known and identity.key is None and (what := changed(known, kind, input_hash)):
            detail = f"step {identity.label} has another {what} than the one it recorded"
            await self.ask(identity, "journal_mismatch", detail, kind, input_hash)
        return known

    async def ask(self, identity: Identity, reason: str, detail: str, kind: str, input_hash: str | None) -> NoReturn:
        """Asks a person about an entry. The function is unwound, and called again with the answer in its journal."""
        await self._gate()
        question = {"reason": reason, "detail": detail, "kind": kind, "input_hash": input_hash}
        await self._wait(identity, "questions", question)
        raise AssertionError("a question ends with the run that asks it")

    async def take(self, name: str) -> list[wire.StepView]:
        """All entries of a name that somebody else than the steps keeps, oldest first."""
        await self.find(Identity(name, "", None))
        taken = [entry for identity, entry in self._entries.items() if identity.name == name]
        self._visited.update(map(Identity.of, taken))
        return sorted(taken, key=lambda entry: entry.number)

    async def _read_rest(self) -> None:
        while not self._complete:
            after = max((entry.number for entry in self._entries.values()), default=0)
            page: wire.ListStepsOutcome = await self._run.call(wire.list_steps, after=after, limit=PAGE_MAX)
            self._note(page.items)
            self._complete = page.next_after is None or page.generation != self._run.task.generation

    def _note(self, entries: list[wire.StepView]) -> None:
        self._entries.update((Identity.of(entry), entry) for entry in entries)

    async def record(self, entry: dict[str, Any]) -> int:
        """Stores an entry and answers with its number. Entries of branches that wait together share a call, and an
        entry is sent also when its branch is gone."""
        await self._gate()
        with self.busy():
            return await self._records.put(entry)

    async def _send(self, entries: list[dict[str, Any]]) -> list[int | BaseException]:
        first, many = self.next_number, len(entries)
        try:
            if many > 1 and len(to_json(entries)) > RECORD_MAX_BYTES:
                raise ValueError("too large for one call")
            answer = await self._run.call(wire.record_steps, first_number=first, entries=entries)
        except Exception as failure:
            error = self._of_record(failure)
            if many == 1 or isinstance(error, Parked) or not is_final(failure):
                return [error] * many
            # None of them is stored. In smaller calls only the entries that cannot be stored are refused.
            return [*await self._send(entries[: many // 2]), *await self._send(entries[many // 2 :])]
        self.next_number = answer.next_number
        if answer.loop_detected:
            # The policy `no_progress` ended the run, or asks a person about it: the task was let go.
            self._run.unwind()
        return list(range(first, first + many))

    def _of_record(self, error: Exception) -> BaseException:
        """An entry could not be recorded."""
        if isinstance(error, Refused):
            if error.code == "journal_conflict":
                # The journal moved under this run: the function starts over with what is there.
                self._run.unwind(restart=True)
                return Parked()
            if error.code == "journal_full":
                return TaskError(str(error), category="journal_full")
        return error

    async def flush(self) -> None:
        """Waits until everything that branches left behind is stored, and every frame."""
        await self._records.flush()
        await self._run.frames.flush()

    def notes(self) -> dict[str, Any]:
        """The entries that a finished run did not ask for, or gave another input."""
        unasked = [one for one in self._entries if one not in self._visited] if self._complete else []
        found = {"steps_not_visited": unasked, "steps_changed": self.changed}
        notes = {name: [one.args() for one in list(steps)[:NAMED_MAX]] for name, steps in found.items() if steps}
        return {"run": notes} if notes else {}

    # Waiting

    async def until_ended(self, identity: Identity, list_name: str, args: dict[str, Any]) -> wire.StepView:
        """Waits until the journal says that an entry has ended."""
        await self._gate()
        known = self._entries.get(identity)
        if known and is_ended(known):
            return known
        if IN_STEP.get():
            raise TaskError("a step cannot wait for something durable; wait between steps", category="wait_in_step")
        return await self._wait(identity, list_name, args)

    async def _wait(self, identity: Identity, list_name: str, args: dict[str, Any]) -> wire.StepView:
        ended = asyncio.get_running_loop().create_future()
        wait = self._waits[identity] = Wait(list_name, {"step": identity.args(), **args}, ended)
        self._consider_parking()
        try:
            return await wait.ended
        finally:
            self._waits.pop(identity, None)
            self._activity += 1

    def _consider_parking(self) -> None:
        if self._check is None and self._parking is None and not self._busy and self._waits and not self.closed:
            self._quiet_turn(QUIET_TURNS, self._activity)

    def _quiet_turn(self, left: int, activity: int) -> None:
        self._check = None
        if self._busy or not self._waits or self.closed:
            return
        loop = asyncio.get_running_loop()
        if activity != self._activity:
            left, activity = QUIET_TURNS, self._activity
        if left:
            self._check = loop.call_soon(self._quiet_turn, left - 1, activity)
        else:
            self._parking = loop.create_task(self._park())

    async def _gate(self) -> None:
        """Nothing begins while it is not known whether the task was let go."""
        while self._parking is not None:
            await asyncio.wait({self._parking})
        if self.closed:
            raise Parked

    async def _park(self) -> None:
        try:
            await self.flush()
            outcome = await self._run.call(wire.park, **self._park_args())
        except Exception as failure:
            self._parking = None
            error = self._of_record(failure)
            for wait in self._waits.values():
                settle(wait.ended, error)
            return
        self._parking = None
        if outcome.outcome != "already_satisfied":
            self._run.unwind()
            return
        self.next_number = outcome.next_number or self.next_number
        self._note(outcome.entries)
        self._activity += 1
        for identity, wait in self._waits.items():
            known = self._entries.get(identity)
            if wait.list_name != "questions" and known and is_ended(known):
                settle(wait.ended, known)
        self._consider_parking()

    def _park_args(self) -> dict[str, Any]:
        lists: dict[str, list[dict[str, Any]]] = {}
        for identity, wait in self._waits.items():
            known = self._entries.get(identity)
            # The instant of a wait is fixed the first time.
            if known and known.next_at is not None:
                for relative, fixed in (("sleep_ms", "until"), ("timeout_ms", "timeout_at")):
                    if wait.args.pop(relative, None) is not None:
                        wait.args[fixed] = known.next_at
            lists.setdefault(wait.list_name, []).append(wait.args)
        return {"first_number": self.next_number, **lists}

    def close(self) -> None:
        """Unwinds every branch that waits, and refuses every further call."""
        self.closed = True
        for wait in self._waits.values():
            settle(wait.ended, Parked())


def changed(known: wire.StepView, kind: str, input_hash: str | None) -> str | None:
    """Names the part of an entry that is not as the program has it now."""
    if known.kind != kind:
        return "kind"
    return "input" if known.input_hash and input_hash and known.input_hash != input_hash else None


def is_ended(entry: wire.StepView) -> bool:
    """Whether an entry is completed or failed for good."""
    return entry.state in {"completed", "failed"}
