"""What was asked and answered, as JSON lines: each call is invoked, and then ok, failed or unknown.

`failed` means refused: a status of 4xx, or a connection that was never opened. Whatever has no answer, or one of 5xx,
is `unknown`: it may have happened, at most once. Times are seconds since the epoch.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
INVOKED, NOTE = "invoked", "note"

Record = dict[str, Any]


class Recorder:
    """Writes the history. Any number of threads may use it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.calls = 0
        self._stream = file.open("w", buffering=1 << 16)
        self._lock = threading.Lock()

    def invoke(self, op: str, **fields: Any) -> int:
        with self._lock:
            self.calls += 1
            number = self.calls
            self._write({"n": number, "phase": INVOKED, "op": op, **fields})
        return number

    def finish(self, number: int, phase: str, **fields: Any) -> None:
        with self._lock:
            self._write({"n": number, "phase": phase, **fields})

    def note(self, note: str, **fields: Any) -> None:
        """Something that is no call: a fault, a frame of a socket."""
        with self._lock:
            self._write({"phase": NOTE, "note": note, **fields})

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def _write(self, record: Record) -> None:
        if not self._stream.closed:  # a thread that still waits for its last answer
            self._stream.write(json.dumps({"at": time.time(), **record}) + "\n")


@dataclass
class Call:
    """One call: what was asked, and what became of it."""

    number: int
    op: str
    asked: Record
    invoked: float
    phase: str = UNKNOWN
    finished: float = float("inf")
    answered: Record = field(default_factory=dict)

    @property
    def status(self) -> int | None:
        return self.answered.get("status")

    @property
    def answer(self) -> Any:
        return self.answered.get("answer")

    def __str__(self) -> str:
        return f"call {self.number} ({self.op} at {self.asked.get('node', '-')}, {self.phase})"


@dataclass
class History:
    calls: list[Call]
    notes: list[Record]

    def of(self, *ops: str) -> Iterator[Call]:
        return (call for call in self.calls if call.op in ops)

    def noted(self, note: str) -> list[Record]:
        return [record for record in self.notes if record["note"] == note]


def read(records: Iterable[Record]) -> History:
    """The calls of a history. One without an end is unknown."""
    calls: dict[int, Call] = {}
    notes: list[Record] = []
    for record in records:
        if record["phase"] == NOTE:
            notes.append(record)
        elif record["phase"] == INVOKED:
            calls[record["n"]] = Call(record["n"], record["op"], record, record["at"])
        else:
            call = calls[record["n"]]
            call.phase, call.finished, call.answered = record["phase"], record["at"], record
    return History(list(calls.values()), notes)


def read_file(file: Path) -> History:
    with file.open() as stream:
        return read(json.loads(line) for line in stream)
