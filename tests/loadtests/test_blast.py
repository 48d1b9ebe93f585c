"""The load generator counts every answer by its status, however it arrives."""

import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from loadtests.blast import Result, request
from tests.service import ROOT

pytestmark = pytest.mark.long

# In a process of its own: it forks.
BLAST = """
import sys
from loadtests.blast import blast, request
make = lambda process, connection, number: request("POST", f"/{(process + number) % 2}", body=b"{}")
result = blast(int(sys.argv[1]), make, connections=2, processes=2, seconds=2)
print(sorted(result.statuses), result.p50_ms <= result.p99_ms, result.per_second > 0)
"""


class Answering(BaseHTTPRequestHandler):
    """Answers /0 with 200 and /1 with an error, with a body in two parts; slowly, to leave the processor to others."""

    protocol_version = "HTTP/1.1"
    answered: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answered[self.path] += 1
        time.sleep(0.02)
        self.send_response(200 if self.path == "/0" else 503)
        self.send_header("CONTENT-LENGTH", "4")
        self.end_headers()
        self.wfile.write(b"ab")
        self.wfile.flush()
        self.wfile.write(b"cd")

    def log_message(self, *_args: object) -> None:
        pass


def test_answers_are_counted_by_status() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            command = [sys.executable, "-c", BLAST, str(server.server_port)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        finally:
            server.shutdown()
            thread.join()
    assert done.stdout == "[200, 503] True True\n", done.stderr
    assert Answering.answered.keys() == {"/0", "/1"}


@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        ("GET", b"", b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\nA: b\r\n\r\n"),
        ("POST", b"", b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nA: b\r\nContent-Length: 0\r\n\r\n"),
        ("PUT", "é".encode(), b"PUT /x HTTP/1.1\r\nHost: 127.0.0.1\r\nA: b\r\nContent-Length: 2\r\n\r\n\xc3\xa9"),
    ],
)
def test_a_request_has_the_length_of_its_body(method: str, body: bytes, expected: bytes) -> None:
    assert request(method, "/x", headers={"A": "b"}, body=body) == expected


def test_a_result_shows_errors_where_there_are_some() -> None:
    fine, bad = Result(2.0, {200: 3000}, 1.0, 2.0), Result(2.0, {200: 10, 404: 1, 503: 5}, 1.0, 2.0)
    assert str(fine).split() == ["1,500/s", "p50", "1.0", "ms", "p99", "2.0", "ms"]
    assert str(bad).endswith("errors {404: 1, 503: 5}")
    assert bad.per_second == 8
