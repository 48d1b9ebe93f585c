"""Speed as ratios, measured in one run on one machine: `make bench`, or `make bench ARGS=servers`."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import psycopg
import requests

from app.run.data_folder import read_state
from app.settings import Settings
from loadtests import bench_boards, bench_live, bench_neighbours
from loadtests.blast import blast, request
from loadtests.service import ROOT, Service, free_port, running_service, wait_until


def servers(seconds: float) -> None:
    """Compare servers for the API: a bare Flask route on each."""
    print("A bare Flask route, GET, 64 connections")
    port = free_port()
    threads = ["--threads", "32"]
    gunicorn = [sys.executable, "-m", "gunicorn", "loadtests.bare:application", "--no-control-socket"]
    gunicorn += ["--bind", f"127.0.0.1:{port}", "--workers", "2", "--log-level", "error"]
    granian = [sys.executable, "-m", "granian", "loadtests.bare:application", "--interface", "wsgi", "--no-log"]
    granian += ["--port", str(port), "--workers", "2", "--blocking-threads"]
    commands = {
        "granian, 32 threads": [*granian, "32"],
        "granian, 8 threads": [*granian, "8"],
        "gunicorn gthread, 32 threads": [*gunicorn, "--worker-class", "gthread", *threads],
        "gunicorn gevent": [*gunicorn, "--worker-class", "gevent"],
    }
    get = request("GET", "/")
    for name, command in commands.items():
        with running(command, port):
            print(f"  {name:<30}{blast(port, lambda *_: get, seconds=seconds)}")


def ingest(seconds: float) -> None:
    """Durable views, one at a time and in batches, against a bare Flask route and against raw SQL.

    First without workers; then with two of them on the same machine, which keep the boards up to date.
    """
    for workers in ("0", "2"):
        with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
            Path(folder).chmod(0o711)
            options = ("--demo", "--no-traffic", "--workers", workers)
            with running_service(Path(folder) / "data", *options) as service:
                print(f"With {workers} workers on this machine")
                measure_ingest(service, seconds)


def measure_ingest(service: Service, seconds: float) -> None:
    port = int(service.url.rsplit(":", 1)[1])
    headers = {"Authorization": f"Bearer {service.token()}", "Content-Type": "application/json"}
    for number in range(PAGES):
        body = {"space": "s", "title": "t", "url": f"/{number}"}
        requests.put(f"{service.url}/api/v1/pages/p{number}", json=body, headers=headers, timeout=10)
    blast(port, partial(view_request, headers), seconds=1)  # warm up
    print(f"Durable single views, 64 connections, {ROUNDS} rounds in turn")
    with bare_route() as bare_port:
        rounds = [
            (
                blast(bare_port, partial(view_request, headers, bare=True), seconds=seconds / 2),
                blast(port, partial(view_request, headers), seconds=seconds / 2),
            )
            for _ in range(ROUNDS)
        ]
    for bare, single in rounds:
        print(f"  {'a bare Flask route, POST JSON':<34}{bare}")
        print(f"  {'POST /pages/{id}/views':<34}{single}   {single.per_second / bare.per_second:.2f} of it")
    print(f"  {'median':<34}{median(s.per_second / b.per_second for b, s in rounds):.2f} of a bare Flask route")
    print("Durable batches of 100 views, 16 connections")
    raw = measure_raw_sql(service, seconds)
    batches = blast(port, partial(batch_request, headers), connections=16, seconds=seconds)
    per_second = batches.per_second * BATCH
    print(f"  {'raw INSERT … unnest, 2 connections':<34}{raw:>9,.0f} events/s")
    print(
        f"  {'POST /events':<34}{per_second:>9,.0f} events/s   {per_second / raw:.2f} of it"
        f"   p50 {batches.p50_ms:.1f} ms   p99 {batches.p99_ms:.1f} ms   {batches.statuses}"
    )


# Other load on the machine varies, so the compared measurements alternate.
ROUNDS = 5
BARE_GET = request("GET", "/")
PAGES = 200
BATCH = 100


def view_request(headers: dict[str, str], process: int, connection: int, number: int, *, bare: bool = False) -> bytes:
    """A view; for the bare route the same except for the path."""
    body = b'{"id":"%d-%d-%d-%d"}' % (os.getpid(), process, connection, number)
    path = "/" if bare else f"/api/v1/pages/p{(connection * 7 + number) % PAGES}/views"
    return request("POST", path, headers=headers, body=body)


def batch_request(headers: dict[str, str], process: int, connection: int, number: int) -> bytes:
    prefix = f"{os.getpid()}-{process}-{connection}-{number}"
    items = [{"type": "view", "page": f"p{(n * 7 + number) % PAGES}", "id": f"{prefix}-{n}"} for n in range(BATCH)]
    return request("POST", "/api/v1/events", headers=headers, body=json.dumps({"events": items}).encode())


@contextmanager
def bare_route() -> Iterator[int]:
    """A bare Flask route with the same server, processes and threads as the API."""
    port, settings = free_port(), Settings.from_env()
    command = [sys.executable, "-m", "granian", "loadtests.bare:application", "--interface", "wsgi", "--no-log"]
    command += ["--port", str(port), "--workers", str(settings.web_processes)]
    command += ["--blocking-threads", str(settings.web_threads)]
    with running(command, port):
        yield port


def measure_raw_sql(service: Service, seconds: float) -> float:
    """Events per second of PostgreSQL alone with the same rows: insert ids, increment buckets, commit."""
    state = read_state(service.data_dir)
    assert state is not None
    url, done = state["addresses"]["database_url"], [0, 0]

    def insert(which: int) -> None:
        with psycopg.connect(url) as connection:
            ids = [row[0] for row in connection.execute("SELECT id FROM pages ORDER BY id LIMIT 200").fetchall()]
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                keys = sorted(uuid.uuid4() for _ in range(BATCH))
                connection.execute(
                    "INSERT INTO seen_events (tenant_id, event_key, seen_on) SELECT 'demo', k, current_date"
                    " FROM unnest(%s::uuid[]) k ON CONFLICT DO NOTHING",
                    [keys],
                )
                connection.execute(
                    "INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views)"
                    " SELECT 'demo', p, date_trunc('hour', now()), 1 FROM unnest(%s::bigint[]) p"
                    " ON CONFLICT (tenant_id, page_id, bucket_hour) DO UPDATE SET views = b.views + 1",
                    [sorted(random.sample(ids, BATCH))],
                )
                connection.commit()
                done[which] += BATCH

    threads = [threading.Thread(target=insert, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: requests.get(f"http://127.0.0.1:{port}/", timeout=1).ok)
        yield
    finally:
        process.terminate()
        process.wait(10)
        time.sleep(0.3)


BENCHMARKS: dict[str, Callable[[float], None]] = {
    "servers": servers,
    "ingest": ingest,
    "reads": bench_boards.reads,
    "latency": bench_boards.latency,
    "live": bench_live.live,
    "neighbours": bench_neighbours.neighbours,
    "projection": bench_boards.costs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="all, if none is given")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    arguments = parser.parse_args()
    for name in arguments.names or BENCHMARKS:
        BENCHMARKS[name](arguments.seconds)


if __name__ == "__main__":
    main()
