"""Closed-loop load: so many requests in flight, as fast as they are answered. By wrk if it is installed, else by blast.

blast is Python and takes a core of its own: with it the generator is what limits fast operations, as the report says.
"""

import json
import math
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loadtests.blast import blast
from loadtests.pools import Pool, write_script

CONNECTIONS = 32
WRK_THREADS = 2
MAX_SECONDS = 60
TIMEOUT_S = 10
# A figure in which more requests fail than this is not reported: an error is answered faster than a success.
MAX_FAILED_SHARE = 0.01


class GeneratorError(Exception):
    """The generator did not run."""


@dataclass(frozen=True)
class Sample:
    """One measurement."""

    per_second: float
    p50_ms: float = math.nan
    p99_ms: float = math.nan
    failed_share: float = 0.0

    @property
    def is_valid(self) -> bool:
        return self.failed_share <= MAX_FAILED_SHARE and self.per_second > 0


def find_wrk() -> str | None:
    return shutil.which("wrk")


def name() -> str:
    return "wrk" if find_wrk() else "blast"


def measure(port: int, pool: Pool, *, seconds: float, connections: int = CONNECTIONS) -> Sample:
    """Send requests of the pool to 127.0.0.1:port."""
    seconds = min(seconds, MAX_SECONDS)
    wrk = find_wrk()
    if wrk is None:
        return _measure_by_blast(port, pool, seconds=seconds, connections=connections)
    threads = min(WRK_THREADS, connections)
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        script = write_script(pool, Path(folder), senders=threads)
        command = [wrk, "--threads", str(threads), "--connections", str(connections)]
        command += ["--duration", f"{max(1, round(seconds))}s", "--timeout", f"{TIMEOUT_S}s", "--script", str(script)]
        command.append(f"http://127.0.0.1:{port}/")
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
    return parse(done.stdout, done.stderr)


def parse(output: str, errors: str = "") -> Sample:
    """The line that our script adds to wrk's own."""
    found = re.search(r"^RESULT (\{.*\})$", output, re.MULTILINE)
    if found is None:
        raise GeneratorError(f"wrk failed: {(errors or output).strip()[-300:]}")
    result = json.loads(found[1])
    requests = result["requests"]
    return Sample(
        per_second=requests / (result["microseconds"] / 1e6),
        p50_ms=result["p50_us"] / 1000,
        p99_ms=result["p99_us"] / 1000,
        failed_share=result["failed"] / max(1, requests),
    )


def _measure_by_blast(port: int, pool: Pool, *, seconds: float, connections: int) -> Sample:
    def make(_process: int, connection: int, number: int) -> bytes:
        return pool.render(connection, connections, number)

    result = blast(port, make, connections=connections, seconds=seconds)
    failed = sum(count for status, count in result.statuses.items() if status >= 400)
    total = max(1, sum(result.statuses.values()))
    return Sample(result.per_second, result.p50_ms, result.p99_ms, failed / total)
