"""The web server's processes: they share a port, are replaced, and stop in time."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import requests

from app.run.ports import reserve_port
from app.server import processes
from tests.service import ROOT, eventually

SERVE = """
import os, signal, sys, threading, time
from app.run.launcher import die_with_parent
from app.server import processes
from app.server.answers import head_of
from app.server.site import Site

def answer(request):
    body = str(os.getpid()).encode()
    time.sleep(0.5 if request.environ["PATH_INFO"] == "/slow" else 0)
    request.answer_soon(head_of("200 OK", [("Content-Length", str(len(body)))]), body)

parent = os.getpid()

class Pid:
    def __init__(self):
        die_with_parent(parent)

    def start(self, loop):
        handle = lambda request: threading.Thread(target=answer, args=(request,)).start()
        self.site = Site(loop, handle, max_slow_bodies=1, max_connections=100)
        return self.site

    def drain(self):
        self.site.is_draining = True

def fail():
    raise ZeroDivisionError

if "ignoring" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try:
    load = fail if "failing" in sys.argv else Pid
    drain_s = float(sys.argv[2]) if sys.argv[2:] and sys.argv[2].isdigit() else 0
    processes.serve(load, host="127.0.0.1", port=int(sys.argv[1]), processes=2, drain_s=drain_s)
except processes.CannotStart as error:
    sys.exit(str(error))
"""


@pytest.fixture(params=["", "ignoring"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = reserve_port()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(port), request.param], cwd=ROOT, stderr=subprocess.PIPE
    )
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: requests.get(url, timeout=2).ok)
        yield process, url
    finally:
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        process.kill()
        process.wait(10)
        assert psutil.wait_procs(children, 10)[1] == [], "they end with their parent"
        assert process.stderr is not None
        process.stderr.close()


def pids(url: str, asked: int = 20) -> set[int]:
    return {int(requests.get(url, timeout=5).text) for _ in range(asked)}


def test_processes_share_the_port_and_one_that_dies_is_replaced(server: Any) -> None:
    process, url = server
    before = eventually(lambda: found if len(found := pids(url)) == 2 else None)
    assert before == {child.pid for child in psutil.Process(process.pid).children()}
    os.kill(min(before), signal.SIGKILL)
    after = eventually(lambda: found if len(found := pids(url)) == 2 and min(before) not in found else None)
    assert max(before) in after


def test_a_process_that_does_not_stop_is_killed(server: Any) -> None:
    process, _ = server
    children = psutil.Process(process.pid).children()
    children[0].suspend()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not any(child.is_running() for child in children)


def test_processes_that_never_start_are_given_up() -> None:
    command = [sys.executable, "-c", SERVE, str(reserve_port()), "failing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.strip().endswith("The web processes end as soon as they start (the last one with 1)")


def test_a_stop_answers_what_is_under_way_and_ends_all_processes(server: Any) -> None:
    process, url = server
    children = psutil.Process(process.pid).children()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert process.wait(60) == 0
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("server", ["300"], indirect=True)
def test_a_draining_process_answers_and_closes_and_sigint_ends_the_drain(server: Any) -> None:
    process, url = server
    with requests.Session() as kept:
        assert "Connection" not in kept.get(url, timeout=10).headers
        process.send_signal(signal.SIGTERM)
        eventually(lambda: requests.get(url, timeout=10).headers.get("Connection") == "close")
        eventually(lambda: kept.get(url, timeout=10).headers.get("Connection") == "close")
    assert len(eventually(lambda: found if len(found := pids(url)) == 2 else None)) == 2, "both still accept"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


class Visitor:
    """Connects, asks once and closes, again and again until it is refused."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answered = 0
        self.broken: list[str] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                client = socket.create_connection(("127.0.0.1", self._port), timeout=30)
            except ConnectionRefusedError:
                return
            with client:
                try:
                    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    self.broken += [] if client.recv(1000).startswith(b"HTTP/1.1 200 OK") else ["closed"]
                    self.answered += 1
                except OSError as error:
                    self.broken.append(type(error).__name__)


@pytest.mark.parametrize("server", ["1"], indirect=True)
def test_whoever_can_connect_until_the_end_of_a_drain_is_answered(server: Any) -> None:
    """Nothing is reset: neither in the queue of the listening socket nor soon after it was accepted."""
    process, url = server
    visitors = [Visitor(int(url.rpartition(":")[2])) for _ in range(8)]
    eventually(lambda: sum(visitor.answered for visitor in visitors) > 100)
    process.send_signal(signal.SIGTERM)
    for visitor in visitors:
        visitor.thread.join(60)
        assert not visitor.thread.is_alive()
    assert process.wait(60) == 0
    assert [broken for visitor in visitors for broken in visitor.broken] == []


@pytest.mark.parametrize("server", [""], indirect=True)
def test_a_port_that_is_taken_is_said_so(server: Any) -> None:
    port = server[1].rpartition(":")[2]
    second = subprocess.run([sys.executable, "-c", SERVE, port], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (second.returncode, second.stderr.strip()) == (
        1,
        f"Cannot listen on 127.0.0.1:{port}: Address already in use",
    )


def test_a_port_that_was_taken_after_a_look_at_it_is_one_line_of_each_attempt() -> None:
    """By another program: two of ours would share it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code = SERVE.replace("try:", "from app.server import listening\nlistening.require_free = print\ntry:", 1)
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", code, str(port)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


def test_all_addresses_are_those_of_both_kinds() -> None:
    with processes.listen("::", 0, shares_port=False) as listening:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listening.getsockname()[1]), timeout=5).close()
