"""What an operation is compared with, in the same run: the least that a server, the database or Redis needs for it."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from app.run.ports import reserve_port
from app.run.server_files import wheel_binaries
from app.settings import Settings
from loadtests.blast import request
from loadtests.generator import Sample
from loadtests.pools import Pool
from loadtests.service import ROOT, wait_until

BARE = Pool([request("GET", "/")])
# Connections of the raw SQL. More of them only wait for each other's locks on popular pages.
SQL_CONNECTIONS = 8
BATCH = 100
REDIS_CONNECTIONS = 2
# Commands sent together by the raw Redis client, so that its Python is not what is measured.
REDIS_PIPELINE = 64


@contextmanager
def bare_server(name: str) -> Iterator[int]:
    """`application` or `function` of loadtests.bare, served as the API is: the same server, processes and threads."""
    port, settings = reserve_port(), Settings.from_env()
    command = [sys.executable, "-m", "loadtests.bare", name, str(port)]
    command += [str(settings.web_processes), str(settings.all_web_threads)]
    with running(command, port):
        yield port


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """A server process of ours, until the block ends."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: requests.get(f"http://127.0.0.1:{port}/", timeout=1).ok)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def raw_sql(database_url: str, script: str, *, seconds: float) -> Sample:
    """Events per second of PostgreSQL alone: pgbench runs the script, a batch of events in one durable transaction."""
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        file = Path(folder) / "batch.sql"
        file.write_text(script)
        command = [str(wheel_binaries().postgres.with_name("pgbench")), "--no-vacuum", "--protocol=prepared"]
        command += ["--client", str(SQL_CONNECTIONS), "--jobs", "2", "--time", str(max(1, round(seconds)))]
        command += ["--file", str(file)]
        # The address has a password: the environment shows it to nobody else, unlike the command line.
        done = subprocess.run(
            command,
            env={**os.environ, **_environment(database_url)},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds + 60,
        )
    return parse_pgbench(done.stdout, done.stderr)


def parse_pgbench(output: str, errors: str = "") -> Sample:
    per_second = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    latency = re.search(r"^latency average = ([0-9.]+) ms", output, re.MULTILINE)
    if per_second is None:
        raise RuntimeError(f"pgbench failed: {errors.strip()[-500:]}")
    return Sample(float(per_second[1]) * BATCH, p50_ms=float(latency[1]) if latency else float("nan"))


def _environment(database_url: str) -> dict[str, str]:
    """What libpq reads."""
    found = re.fullmatch(r"postgresql://([^:@]+)(?::([^@]+))?@([^:]+):(\d+)/(\w+)", database_url)
    assert found is not None, "the address of a local server"
    names = ("PGUSER", "PGPASSWORD", "PGHOST", "PGPORT", "PGDATABASE")
    return dict(zip(names, found.groups(default=""), strict=True))


def raw_redis(redis_url: str, key: str, *, seconds: float) -> Sample:
    """ZREVRANGE of the top ten per second, over a few connections with a pipeline each."""
    counts = [0] * REDIS_CONNECTIONS
    threads = [
        threading.Thread(target=_read_top, args=(redis_url, key, seconds, counts, place))
        for place in range(REDIS_CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Sample(sum(counts) / seconds)


def _read_top(redis_url: str, key: str, seconds: float, counts: list[int], place: int) -> None:
    """On a raw socket: redis-py spends more time on an answer than the server does."""
    found = re.fullmatch(r"redis://:([^@]+)@([^:]+):(\d+)/0", redis_url)
    assert found is not None, "the address of a local server"
    command = b"ZREVRANGE %b 0 9 WITHSCORES\r\n" % key.encode()
    with socket.create_connection((found[2], int(found[3])), timeout=10) as connection:
        connection.sendall(b"AUTH %b\r\n" % found[1].encode())
        assert connection.recv(100) == b"+OK\r\n"
        connection.sendall(command)
        time.sleep(0.05)
        size = len(connection.recv(65_536))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(command * REDIS_PIPELINE)
            _discard(connection, size * REDIS_PIPELINE)
            counts[place] += REDIS_PIPELINE


def _discard(connection: socket.socket, size: int) -> None:
    """Answers are as long as the first one, since the board is at rest."""
    while size > 0:
        received = len(connection.recv(min(size, 1 << 18)))
        if not received:
            raise ConnectionError("Redis closed the connection")
        size -= received
