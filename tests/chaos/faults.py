"""Carries out each kind of fault, and undoes it. All of it runs in the main thread, which starts `plaudit up` again."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.chaos import clock
from tests.chaos.history import Recorder
from tests.chaos.proxies import Mode
from tests.chaos.schedule import Fault, Kind
from tests.chaos.site import NODES, Site
from tests.chaos.traffic import Clients
from tests.service import children_of, eventually, is_listening, plaudit

# Which process of node a a kind is about.
PROCESSES = {
    Kind.KILL_WEB_PARENT: "web",
    Kind.KILL_LIVE: "live",
    Kind.KILL_WORKER: "worker",
    Kind.KILL_CRON: "cron",
    Kind.KILL_VALKEY: "valkey",
    Kind.KILL_POSTMASTER: "postgres",
    Kind.STOP_WEB_PARENT: "web",
    Kind.STOP_LIVE: "live",
    Kind.STOP_WORKER: "worker",
    Kind.STOP_VALKEY: "valkey",
    Kind.STOP_POSTMASTER: "postgres",
}
# Those of a web or live process that serve, below the one that `up` started.
SERVING = {Kind.KILL_WEB_WORKER: "web", Kind.STOP_WEB_WORKER: "web", Kind.KILL_LIVE_WORKER: "live"}
# Faults of node a alone; others are of the servers, and so of both nodes.
OF_NODE_A = {
    *(PROCESSES.keys() - {Kind.KILL_VALKEY, Kind.KILL_POSTMASTER, Kind.STOP_VALKEY, Kind.STOP_POSTMASTER}),
    *SERVING,
}
MAX_DELAY_S = 1.5
MAX_CLOCK_JUMP_S = 30
CLIENT_JUMPS = (timedelta(minutes=4), timedelta(hours=-1), timedelta(hours=-30), timedelta(seconds=-10))
FIND_WITHIN_S = 60
# More than PostgreSQL writes in a run: its log has 1 GB at most.
DISK_BYTES = 3 * 2**29
# PostgreSQL recovers from a crash within this time here.
RECOVERING_S = 2.5
# Tables that a migration adds a column to, and that a session locks.
TABLES = ("page_counters", "page_likes", "users", "score_ledger", "outbox", "pages")
LOCK_TIMEOUT = "10s"


def why_not(kind: Kind) -> str:
    """Why a kind cannot be carried out on this machine; empty if it can."""
    if kind is Kind.DISK_FULL:
        return "" if _may_mount() else "a small file system of its own needs the right to mount (CAP_SYS_ADMIN)"
    if kind is Kind.NODE_CLOCK:
        return clock.why_not()
    return ""


def _may_mount() -> bool:
    if os.geteuid() != 0 or not shutil.which("mount"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True)  # noqa: PLW1510, S607
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)  # noqa: S607
        return done.returncode == 0


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """The folder of node a: a small file system of its own, where that is possible."""
    disk = folder / "disk"
    disk.mkdir(mode=0o711)
    if not _may_mount():
        yield disk
        return
    options = f"size={DISK_BYTES},mode=711"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(disk)], check=True)  # noqa: S607
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # noqa: S607


@dataclass
class Faults:
    site: Site
    clients: Clients
    recorder: Recorder
    disk: Path
    # By how much the clock of node b has jumped at most.
    jumped_s: int = 0

    def carry_out(self, fault: Fault) -> None:
        """Begin it, wait while it lasts, undo it; and record when that was."""
        began = time.time()
        error = ""
        nodes = "".join(NODES)
        try:
            healed, nodes = self._carry_out(fault)
        except AssertionError as failure:
            self.site.problems.append(f"{fault} found the site not as it was before the last fault: {failure}")
            healed, error = time.time(), "no victim"
        except (psutil.Error, psycopg.Error, OSError) as failure:
            # A victim that ended by itself, or a migration that found its table locked.
            healed, error = time.time(), f"{type(failure).__name__}: {' '.join(str(failure).split()[:20])}"
        fields = {"kind": str(fault.kind), "link": fault.link, "nodes": nodes, "error": error}
        self.recorder.note("fault", began=began, healed=healed, **fields)

    def _carry_out(self, fault: Fault) -> tuple[float, str]:
        """Returns when it was healed, and the nodes that it is about."""
        kind = fault.kind
        if kind.is_network:
            return self._disturb(fault)
        if kind in PROCESSES or kind in SERVING:
            signal_process = _kill if kind.startswith("kill") else partial(_stop_for, fault.lasts_s)
            return signal_process(self._process(fault)), "a" if kind in OF_NODE_A else "ab"
        carried_out: dict[Kind, Callable[[Fault], float]] = {
            Kind.KILL_UP: self._kill_up,
            Kind.STOP_UP: self._stop_up,
            Kind.KILL_BACKEND: self._kill_backend,
            Kind.STOP_BACKEND: self._stop_backend,
            Kind.TERMINATE: self._terminate,
            Kind.FLUSHALL: self._flush,
            Kind.SHUTDOWN_IN_RECOVERY: self._shut_down_in_recovery,
            Kind.LOCK_TABLE: self._lock_table,
            Kind.MIGRATION: self._migrate,
            Kind.ROLLING_RESTART: self._restart_all,
            Kind.CLIENT_CLOCK: self._jump_client_clock,
            Kind.NODE_CLOCK: self._jump_node_clock,
            Kind.DISK_FULL: self._fill_disk,
        }
        nodes = "b" if kind in {Kind.ROLLING_RESTART, Kind.NODE_CLOCK} else "ab"
        return carried_out[kind](fault), nodes

    def _process(self, fault: Fault) -> psutil.Process:
        """The victim, once it is there: an earlier fault may have ended it."""
        assert self.site.up is not None
        up = self.site.up
        if fault.kind in SERVING:
            name = SERVING[fault.kind]
            workers = eventually(lambda: children_of(up.processes()[name].pid), within_s=FIND_WITHIN_S)
            worker: psutil.Process = _choose(workers, fault.choice)
            return worker
        name = PROCESSES[fault.kind]
        found: psutil.Process = eventually(lambda: up.processes().get(name), within_s=FIND_WITHIN_S)
        return found

    def _disturb(self, fault: Fault) -> tuple[float, str]:
        node = _choose(NODES, fault.choice) if fault.link.startswith("client") else "b"
        name = f"{fault.link} {node}" if fault.link.startswith("client") else fault.link
        proxy = self.site.proxies.by_name[name]
        mode = Mode(str(fault.kind))
        proxy.set(mode, delay_s=0.05 + MAX_DELAY_S * fault.choice, cut_after_bytes=1 + int(fault.choice * 40))
        time.sleep(fault.lasts_s)
        proxy.set(Mode.PASS)
        return time.time(), node

    def _kill_up(self, _fault: Fault) -> float:
        assert self.site.up is not None
        self.site.up.process.kill()
        self.site.up.process.wait()
        killed = time.time()
        self.site.up.close()
        self.site.start_up()
        return killed

    def _stop_up(self, fault: Fault) -> float:
        assert self.site.up is not None
        return _stop_for(fault.lasts_s, psutil.Process(self.site.up.process.pid))

    def _backend(self, fault: Fault) -> psutil.Process:
        """A connection of the service's own."""
        with self.site.superuser() as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                " AND application_name LIKE 'plaudit%' ORDER BY backend_start"
            ).fetchall()
        return psutil.Process(int(_choose(found, fault.choice)[0]))

    def _kill_backend(self, fault: Fault) -> float:
        return _kill(self._backend(fault))

    def _stop_backend(self, fault: Fault) -> float:
        return _stop_for(fault.lasts_s, self._backend(fault))

    def _terminate(self, _fault: Fault) -> float:
        with self.site.superuser() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        return time.time()

    def _flush(self, _fault: Fault) -> float:
        with self.site.redis() as redis:
            redis.flushall()
        return time.time()

    def _shut_down_in_recovery(self, fault: Fault) -> float:
        """As an operator, or a script, who stops PostgreSQL just after a crash."""
        assert self.site.up is not None
        postmaster = self.site.up.processes()["postgres"]
        _kill(self._backend(fault))
        time.sleep(RECOVERING_S * fault.choice)
        with contextlib.suppress(psutil.NoSuchProcess):
            postmaster.send_signal(signal.SIGINT)
        return time.time()

    def _lock_table(self, fault: Fault) -> float:
        with self.site.owner() as owner, owner.transaction():
            owner.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            owner.execute(f"LOCK TABLE {_choose(TABLES, fault.choice)} IN ACCESS EXCLUSIVE MODE")
            time.sleep(fault.lasts_s)
        return time.time()

    def _migrate(self, fault: Fault) -> float:
        """`plaudit migrate`, and what an expanding migration does: a column more, which the next one takes away."""
        done = plaudit("migrate", data_dir=self.site.data_dir)
        assert done.returncode == 0, done.stderr
        table = _choose(TABLES, fault.choice)
        for change in ("ADD COLUMN added_by_test integer NOT NULL DEFAULT 0", "DROP COLUMN added_by_test"):
            with self.site.owner() as owner, owner.transaction():
                owner.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                owner.execute(f"ALTER TABLE {table} {change}")
            time.sleep(fault.lasts_s / 2)
        return time.time()

    def _restart_all(self, _fault: Fault) -> float:
        """Each process of node b, one after the other, as an upgrade does."""
        for name in ("web", "live", "worker", "cron"):
            self.site.restart(name)
            if name in {"web", "live"}:
                port = self.site.ports[f"{name} b"]
                eventually(lambda port=port: is_listening(port), within_s=FIND_WITHIN_S)  # type: ignore[misc]
        return time.time()

    def _jump_client_clock(self, fault: Fault) -> float:
        self.clients.offset = _choose(CLIENT_JUMPS, fault.choice)
        time.sleep(fault.lasts_s)
        self.clients.offset = timedelta(0)
        return time.time()

    def _jump_node_clock(self, fault: Fault) -> float:
        jump_s = int((2 * fault.choice - 1) * MAX_CLOCK_JUMP_S)
        self.jumped_s = max(self.jumped_s, abs(jump_s))
        self.site.clock.jump(jump_s)
        time.sleep(fault.lasts_s)
        self.site.clock.jump(0)
        return time.time()

    def _fill_disk(self, fault: Fault) -> float:
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:  # until there is no space left
            while True:
                file.write(b"\0" * 2**20)
        time.sleep(fault.lasts_s)
        filler.unlink()
        return time.time()


def _choose(among: Any, choice: float) -> Any:
    return among[min(int(choice * len(among)), len(among) - 1)]


def _kill(process: psutil.Process) -> float:
    process.kill()
    return time.time()


def _stop_for(seconds: float, process: psutil.Process) -> float:
    process.suspend()
    time.sleep(seconds)
    with contextlib.suppress(psutil.NoSuchProcess):  # whoever watches it may have ended it
        process.resume()
    return time.time()
