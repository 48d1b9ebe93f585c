"""Speed as ratios, measured in one run on one machine: `make bench`, or `make bench ARGS=servers`."""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loadtests.blast import blast, request
from tests.service import ROOT, eventually, free_port


def servers(seconds: float) -> None:
    """Which server for the API: a bare Flask route under each."""
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


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        import requests

        eventually(lambda: requests.get(f"http://127.0.0.1:{port}/", timeout=1).ok)
        yield
    finally:
        process.terminate()
        process.wait(10)
        time.sleep(0.3)


BENCHMARKS: dict[str, Callable[[float], None]] = {"servers": servers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="all, if none is named")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    arguments = parser.parse_args()
    for name in arguments.names or BENCHMARKS:
        BENCHMARKS[name](arguments.seconds)


if __name__ == "__main__":
    main()
