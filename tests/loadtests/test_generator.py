"""What wrk prints becomes a sample; a sample with many failures is not valid."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtests import generator
from loadtests.blast import request
from loadtests.generator import GeneratorError, Sample, parse
from loadtests.pools import NUMBER, UNIQUE, Pool

OUTPUT = """Running 6s test @ http://127.0.0.1:8000/
  2 threads and 32 connections
Requests/sec:  11400.17

RESULT {"requests": 68400, "microseconds": 6000000, "failed": 342, "p50_us": 2500, "p99_us": 9900}
"""


def test_the_result_line_is_parsed() -> None:
    assert parse(OUTPUT) == Sample(11_400, p50_ms=2.5, p99_ms=9.9, failed_share=0.005)
    with pytest.raises(GeneratorError, match="unable to connect"):
        parse("Running 6s test", "unable to connect to 127.0.0.1:1")


@pytest.mark.parametrize(("failed_share", "is_valid"), [(0.0, True), (0.01, True), (0.011, False), (1.0, False)])
def test_more_than_one_failure_in_a_hundred_is_not_valid(failed_share: float, is_valid: bool) -> None:
    assert Sample(100, failed_share=failed_share).is_valid is is_valid
    assert not Sample(0, failed_share=failed_share).is_valid


class Recording(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    paths: list[str]

    def do_GET(self) -> None:
        type(self).paths.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.mark.skipif(generator.find_wrk() is None, reason="wrk is not installed")
def test_wrk_sends_what_the_pool_says() -> None:
    """The Lua script and `Pool.render` replace marks in the same way."""
    Recording.paths = []
    pool = Pool([request("GET", f"/{name}/{UNIQUE}/{NUMBER}") for name in "ab"], modulus=1_000_000, stride=7, offset=5)
    with ThreadingHTTPServer(("127.0.0.1", 0), Recording) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            sample = generator.measure(server.server_port, pool, seconds=1, connections=2)
        finally:
            server.shutdown()
            thread.join()
    assert sample.is_valid
    rendered = [pool.render(sender, 2, sent) for sent in range(len(Recording.paths)) for sender in range(2)]
    assert {*Recording.paths} <= {request.split()[1].decode() for request in rendered}
    assert len({*Recording.paths}) == len(Recording.paths)
