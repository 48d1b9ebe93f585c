"""The open-loop generator sends at its rate, and says what was answered."""

import subprocess
import sys

from tests.service import ROOT

# In a process of its own: it forks.
STEADY = """
import threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from loadtests.blast import request
from loadtests.pools import Pool
from loadtests.steady import Steady

class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(500 if self.path == "/9" else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_args):
        pass

ThreadingHTTPServer.request_queue_size = 64
server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
server.daemon_threads = True
pool = Pool([request("GET", f"/{number}") for number in range(10)])
steady = Steady(server.server_port, pool, per_second=50, seconds=1)
with steady:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sent = steady.result()
numbers, bodies = sorted(answer.number for answer in sent.answers), {answer.body for answer in sent.answers}
print(numbers == list(range(50)), sum(a.status == 500 for a in sent.answers), 0 < sent.per_second <= 45, bodies)
"""


def test_requests_are_sent_at_the_rate_and_failures_are_not_counted() -> None:
    command = [sys.executable, "-c", STEADY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True 5 True {b'ok'}\n", done.stderr
