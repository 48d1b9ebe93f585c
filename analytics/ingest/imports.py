"""`plaudit import`: a file of events, one JSON object a line, counted once however often it is imported.

A file is identified by its content's hash, for ever. Each chunk of lines is written in the transaction that also moves
`lines_done`, so an interrupted import continues where it stopped, and a finished one adds nothing, with or without ids.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import BigInteger, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.boards import projection
from analytics.ingest import writes
from analytics.ingest.batches import Batch, Rejection
from analytics.ingest.events import Ages, Unreadable
from analytics.ingest.reasons import Reason, Refused
from analytics.locks import Busy
from tenants.db import Base, DeletedWithTenant, Tx, tenant_tx
from tenants.errors import Conflict

CHUNK_LINES = 1000
# An import that is quicker than the projection waits while the tenant's boards are further behind.
MAX_LAG_S = 60.0
LOOK_EVERY_S = 0.5
MAX_LINE_BYTES = 64 * 1024
NOT_IMPORTED = Refused(Reason.INVALID, "actions are paid as they happen, and not imported")
REJECT_FIELDS = {"line", "code", "detail", "event"}


class Import(DeletedWithTenant, Base):
    __tablename__ = "imports"

    file_hash: Mapped[str] = mapped_column(primary_key=True)
    file_name: Mapped[str]
    lines_done: Mapped[int] = mapped_column(BigInteger, server_default="0")
    accepted: Mapped[int] = mapped_column(BigInteger, server_default="0")
    duplicates: Mapped[int] = mapped_column(BigInteger, server_default="0")
    rejected: Mapped[int] = mapped_column(BigInteger, server_default="0")
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class ImportRunning(Conflict):
    code = "import_running"
    title = "Another import of this file is running"


@dataclass(frozen=True)
class Reject:
    line: int
    rejection: Rejection
    text: bytes

    def as_json(self) -> bytes:
        """A line of the file of rejects, which can be imported once its events are corrected."""
        try:
            event = _unwrapped(orjson.loads(self.text))
        except orjson.JSONDecodeError:
            event = self.text[:1000].decode(errors="replace")
        shown = {"line": self.line, "code": self.rejection.code.value, "detail": self.rejection.detail}
        return orjson.dumps({**shown, "event": event})


@dataclass(frozen=True)
class Chunk:
    """One committed step: how many lines are done, and which lines of the step were rejected."""

    lines_done: int
    rejects: list[Reject]


def hash_file(file: Path) -> tuple[str, int]:
    """The hash of its content, and its number of lines."""
    digest, lines, last = hashlib.sha256(), 0, b"\n"
    with file.open("rb") as stream:
        while block := stream.read(1024 * 1024):
            digest.update(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return digest.hexdigest(), lines + (last != b"\n")


def _unwrapped(event: Any) -> Any:
    """The event itself, if the line is from a file of rejects."""
    while isinstance(event, dict) and event.keys() == REJECT_FIELDS:
        event = event["event"]
    return event


def begin(tx: Tx, file_hash: str, *, name: str, now: datetime, again: bool = False) -> Import:
    """The import of this file, new or with its progress. `again`: restart a finished one that counted nothing."""
    tx.execute(
        insert(Import)
        .values(tenant_id=tx.tenant, file_hash=file_hash, file_name=name, started_at=now)
        .on_conflict_do_nothing()
    )
    if again:
        nothing_counted = (Import.accepted == 0) & (Import.duplicates == 0) & Import.finished_at.is_not(None)
        tx.execute(
            update(Import)
            .where(Import.file_hash == file_hash, nothing_counted)
            .values(lines_done=0, rejected=0, finished_at=None)
        )
    return tx.scalars(select(Import).where(Import.file_hash == file_hash)).one()


def run(tenant_id: str, file: Path, file_hash: str, *, lines_done: int, ages: Ages, now: datetime) -> Iterator[Chunk]:
    """Write the rest of the file, chunk by chunk; each is committed when it is yielded."""
    done = lines_done
    for texts in _chunks(file, skip=lines_done):
        numbers = [number for number, line in enumerate(texts) if line.strip()]
        batch = Batch(tenant_id, [_read(texts[number]) for number in numbers], now=now, ages=ages)
        with tenant_tx(tenant_id) as tx:
            writes.apply(tx, batch.request)
            tally = batch.tally(unpaid=NOT_IMPORTED)
            tx.after_commit(tally.measure)
            _move(tx, file_hash, done, len(texts), tally.accepted, tally.duplicates, len(tally.rejected))
        rejects = [
            Reject(done + 1 + numbers[rejection.index], rejection, texts[numbers[rejection.index]])
            for rejection in tally.rejected
        ]
        done += len(texts)
        yield Chunk(done, rejects)
    with tenant_tx(tenant_id) as tx:
        tx.execute(update(Import).where(Import.file_hash == file_hash).values(finished_at=now))


def hold_back(tenant_id: str, *, now: Callable[[], datetime]) -> Iterator[float]:
    """Wait while the tenant's boards are more than MAX_LAG_S behind. Yields the lag in seconds, once at least.

    It projects them itself where no worker does: there may be none.
    """
    while True:
        with tenant_tx(tenant_id) as tx:
            lag_s = outbox.lag_s(tx)
        yield lag_s
        if lag_s <= MAX_LAG_S:
            return
        looks_again_at = time.monotonic() + LOOK_EVERY_S
        try:
            projection.project_all(tenant_id, now=now, is_over=partial(_has_passed, looks_again_at))
        except Busy:
            time.sleep(LOOK_EVERY_S)


def _has_passed(moment: float) -> bool:
    return time.monotonic() >= moment


def _move(tx: Tx, file_hash: str, done: int, lines: int, accepted: int, duplicates: int, rejected: int) -> None:
    moved = tx.scalar(
        update(Import)
        .where(Import.file_hash == file_hash, Import.lines_done == done)
        .values(
            lines_done=done + lines,
            accepted=Import.accepted + accepted,
            duplicates=Import.duplicates + duplicates,
            rejected=Import.rejected + rejected,
        )
        .returning(Import.lines_done)
    )
    if moved is None:
        raise ImportRunning


def _chunks(file: Path, *, skip: int) -> Iterator[list[bytes]]:
    with file.open("rb") as stream:
        texts: list[bytes] = []
        for number, line in enumerate(stream):
            if number < skip:
                continue
            texts.append(line.rstrip(b"\r\n"))
            if len(texts) == CHUNK_LINES:
                yield texts
                texts = []
        if texts:
            yield texts


def _read(line: bytes) -> Any:
    if len(line) > MAX_LINE_BYTES:
        return Unreadable(f"a line of {len(line)} bytes, of at most {MAX_LINE_BYTES}")
    try:
        event = _unwrapped(orjson.loads(line))
        return orjson.loads(event) if isinstance(event, str) else event
    except orjson.JSONDecodeError as error:
        return Unreadable(f"not JSON: {error}")
