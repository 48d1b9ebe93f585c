"""Servers for the API compared: a bare Flask route on each."""

import sys

from app.run.ports import reserve_port
from loadtests import generator
from loadtests.figures import number
from loadtests.floors import BARE, running


def servers(seconds: float) -> None:
    print(f"A bare Flask route, GET, {generator.CONNECTIONS} connections")
    port = reserve_port()
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
    for name, command in commands.items():
        with running(command, port):
            sample = generator.measure(port, BARE, seconds=seconds)
        print(f"  {name:<30}{sample.per_second:>9,.0f}/s   p99 {number(sample.p99_ms)} ms")
