"""Counters of one process, in files that every process of the machine can scrape.

The library maps its files into memory. Where the disk of such a file is full, the next count kills the process
(SIGBUS), in the middle of a request. Here counts are in the process's own memory, and are written to the file of the
library's format, whose space is taken in advance. Where there is none, the process goes on without its file, says so
in one line, and tries again after `RETRY_S`.

Files have the number of a *slot* and not of a process, so that there are at most `MAX_PROCESSES` of each kind: a
process holds its slot by a lock that the kernel releases when the process ends, however that happens. The next one in
the slot continues the counters. What gauges said of the process before is deleted.

Import `Counter`, `Gauge` and `Histogram` from here.
"""

import errno
import fcntl
import os
import struct
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import structlog
from prometheus_client import Counter, Gauge, Histogram, values
from prometheus_client.mmap_dict import MmapedDict

__all__ = ["Counter", "Gauge", "Histogram", "files_in", "is_readable"]

MAX_PROCESSES = 256
# Some 25,000 samples. What comes then is counted in memory only, and so is not scraped.
MAX_FILE_BYTES = 4 * 1024 * 1024
# As much space is taken at once.
STEP_BYTES = 16 * 1024
RETRY_S = 60.0

# The library's format: how many bytes are used; then for each sample the length of its key, the key padded with spaces
# so that its value is aligned, the value and its time.
_HEAD_BYTES = 8
_LENGTH, _SAMPLE = struct.Struct("i"), struct.Struct("dd")

log = structlog.get_logger()


class MetricsFile:
    """The samples of one kind in this process; `MmapedDict` of the library, without its mapped file.

    Not thread-safe: the library has a lock around every call.
    """

    def __init__(self, filename: str) -> None:
        path = Path(filename)  # with the number of the process, as the library names files
        self._folder, self._kind = path.parent, path.stem.rpartition("_")[0]
        self._samples: dict[str, tuple[float, float]] = {}
        self._places: dict[str, int] = {}
        self._used = self._capacity = 0
        self._fd: int | None = None
        self._retry_at = 0.0
        # Counts of the process before, where this process began to count before it could open the file.
        self._before: dict[str, float] = {}
        self._has_continued = False
        self._is_full = False
        self._open()

    def read_value(self, key: str) -> tuple[float, float]:
        if key not in self._samples:
            self.write_value(key, 0.0, 0.0)
        return self._samples[key]

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        self._samples[key] = value, timestamp
        if self._fd is None:
            if time.monotonic() >= self._retry_at:
                self._open()
        else:
            try:
                self._save(self._fd, key)
            except OSError as error:
                self._lose(error)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        """Continue what the process before in this slot has counted."""
        try:
            path = self._folder / f"{self._kind}_{_Slots.of(self._folder).own()}.db"
            if not is_readable(path):
                _create(path)
            self._fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            self._capacity = os.fstat(self._fd).st_size
            self._used = max(_HEAD_BYTES, *_LENGTH.unpack(os.pread(self._fd, _LENGTH.size, 0)))
            found = _samples_in(path)
            self._places = {key: place for key, _, place in found}
            before = {key: sample for key, sample, _ in found}
            if not self._has_continued and not self._kind.startswith("gauge_"):
                self._before = {key: before[key][0] for key in self._samples if key in before}
            self._samples = before | self._samples
            self._has_continued = True
            for key in self._samples:
                self._save(self._fd, key)
        except OSError as error:
            self._lose(error)

    def _save(self, fd: int, key: str) -> None:
        value, timestamp = self._samples[key]
        sample = _SAMPLE.pack(value + self._before.get(key, 0.0), timestamp)
        if key in self._places:
            _write(fd, sample, self._places[key])
            return
        encoded = key.encode()
        padded = encoded + b" " * (8 - (len(encoded) + _LENGTH.size) % 8)
        entry = _LENGTH.pack(len(encoded)) + padded + sample
        end = self._used + len(entry)
        if end > MAX_FILE_BYTES:
            if not self._is_full:
                self._is_full = True
                log.warning(
                    "a metrics file is full: further samples of this process are not scraped",
                    action="metrics.full",
                    data={"folder": str(self._folder), "kind": self._kind},
                )
            return
        while end > self._capacity:
            _write(fd, bytes(STEP_BYTES), self._capacity)
            self._capacity += STEP_BYTES
        _write(fd, entry, self._used)
        _write(fd, _LENGTH.pack(end), 0)  # last: until then readers do not see the new sample
        self._used, self._places[key] = end, end - _SAMPLE.size

    def _lose(self, error: OSError) -> None:
        self.close()
        self._retry_at = time.monotonic() + RETRY_S
        _Slots.of(self._folder).say(error)


class _Slots:
    """The slots of a folder, and the one that this process has."""

    @staticmethod
    @cache
    def of(folder: Path) -> "_Slots":
        return _Slots(folder)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Kept open: a process that closes the file releases its lock.
        self._locks: int | None = None
        self._own: int | None = None
        self._pid = 0
        self._said_by = 0
        # Within a process a lock is no lock.
        self._probing = threading.Lock()

    def own(self) -> int:
        """The lowest that no other process has. OSError: there is no space for the file of locks, or none is left."""
        with self._probing:
            if self._own is None or self._pid != os.getpid():  # a fork has none of its parent's locks
                self._own = next((slot for slot in range(MAX_PROCESSES) if self._try_lock(slot)), None)
                self._pid = os.getpid()
                if self._own is None:
                    raise OSError(errno.EUSERS, f"{MAX_PROCESSES} processes have their metrics there")
                for gauges in self._folder.glob(f"gauge_*_{self._own}.db"):
                    gauges.unlink(missing_ok=True)
            return self._own

    def is_used(self, slot: int) -> bool:
        """Whether a living process has it."""
        with self._probing:
            if self._pid == os.getpid() and self._own == slot:
                return True
            is_free = self._try_lock(slot)
            if is_free and self._locks is not None:
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, slot)
            return not is_free

    def say(self, error: OSError) -> None:
        """Once in a process."""
        if self._said_by != os.getpid():
            self._said_by = os.getpid()
            log.warning(
                "metrics cannot be written: this process counts in memory, and tries again each minute",
                action="metrics.in_memory",
                data={"folder": str(self._folder), "error": error.strerror},
            )

    def _try_lock(self, slot: int) -> bool:
        if self._locks is None:
            self._locks = os.open(self._folder / "slots.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except (BlockingIOError, PermissionError):  # both mean: another process has it
            return False
        return True


def files_in(folder: Path) -> list[Path]:
    """The files of all counters on this machine, and of the gauges of living processes."""
    slots = _Slots.of(folder)
    files = [(file, file.stem.rpartition("_")[2]) for file in sorted(folder.glob("*_*.db"))]
    return [
        file
        for file, slot in files
        if slot.isdecimal()
        and int(slot) < MAX_PROCESSES
        and (not file.stem.startswith("gauge_") or slots.is_used(int(slot)))
    ]


def is_readable(file: Path) -> bool:
    """Whether it is a file of this format; a crash of the machine may leave another one."""
    try:
        return all(isinstance(orjson.loads(key), list) for key, _, _ in _samples_in(file))
    except (OSError, ValueError, RuntimeError, struct.error):
        return False


def _samples_in(file: Path) -> list[tuple[str, tuple[float, float], int]]:
    """The key, the value with its time, and the place of each sample."""
    of_file: Any = MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]
    return [(key, (value, timestamp), place) for key, value, timestamp, place in of_file]


def _create(path: Path) -> None:
    """An empty file. It is complete when it gets its name, since others may read it at once."""
    unfinished = path.with_suffix(".new")
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        _write(fd, _LENGTH.pack(_HEAD_BYTES).ljust(STEP_BYTES, b"\0"), 0)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _write(fd: int, data: bytes, place: int) -> None:
    if os.pwrite(fd, data, place) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# The library opens one for each kind in a process, if there is a folder (PROMETHEUS_MULTIPROC_DIR).
values.MmapedDict = MetricsFile  # type: ignore[attr-defined, assignment]
