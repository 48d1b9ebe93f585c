"""From a like's answer to its value on the board, as a reader of the board sees it, while likes come at a fixed rate.

One like in twenty is of the most liked page. The answer to a like says how many like the page now; the like is on the
board when the board shows as many. So every like of that page is a measurement, and the reader asks for nothing but the
top ten, as any dashboard does.
"""

import http.client
import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from loadtests.operations import LIKED_PAGES, TOP, USER_STRIDE, send
from loadtests.pools import NUMBER, Pool
from loadtests.steady import Answered, Steady
from loadtests.target import Target

LIKES_PER_S = 1_000
WATCHED = "p000000"
WATCHED_IN = 20
READ_EVERY_S = 0.005
# After the last like, until it is on the board.
READ_AFTER_S = 3.0
# Of the rate: below, the service does not keep up, and the figure is of another load.
MIN_SHARE = 0.95
AT_LEAST = {"p50_ms": 100.0, "p99_ms": 500.0}
AIM = {"p50_ms": 50.0, "p99_ms": 200.0}


@dataclass(frozen=True)
class Latency:
    wanted_per_s: float
    reached_per_s: float
    likes: int
    p50_ms: float
    p99_ms: float

    @property
    def is_valid(self) -> bool:
        return self.reached_per_s >= MIN_SHARE * self.wanted_per_s and self.likes > 0


def measure(target: Target, *, seconds: float, per_second: float = LIKES_PER_S) -> Latency:
    target.measurement += 1
    with Steady(target.port, pool(target), per_second=per_second, seconds=seconds) as likes:
        read = _read_board(target, seconds=seconds + READ_AFTER_S)
        sent = likes.result()
    waits = sorted(waits_of(sent.answers, read))
    if not waits:
        return Latency(per_second, sent.per_second, 0, math.nan, math.nan)
    p50, p99 = (waits[int(len(waits) * share)] * 1000 for share in (0.5, 0.99))
    return Latency(per_second, sent.per_second, len(waits), p50, p99)


def pool(target: Target) -> Pool:
    """Likes of a thousand pages, one in twenty of the watched one."""
    token = target.client_token()
    pages = [
        WATCHED if place % WATCHED_IN == 0 else f"p{place % target.tenant.pages:06d}" for place in range(LIKED_PAGES)
    ]
    return Pool(
        [send("PUT", f"/api/v1/pages/{page}/likes/u{NUMBER}", token) for page in pages],
        modulus=target.tenant.users,
        stride=USER_STRIDE,
        offset=target.measurement,
    )


def _read_board(target: Target, *, seconds: float) -> list[tuple[float, int]]:
    """When the board was read, and how many likes it showed for the watched page."""
    read: list[tuple[float, int]] = []
    path = TOP.format("all", "likes")
    headers = {"Authorization": f"Bearer {target.client_token()}"}
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=10)
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        connection.request("GET", path, headers=headers)
        items = orjson.loads(connection.getresponse().read()).get("items", [])
        shown = next((item["value"] for item in items if item["page"]["external_id"] == WATCHED), 0)
        read.append((time.perf_counter(), int(shown)))
        time.sleep(max(0.0, READ_EVERY_S - (time.perf_counter() - began)))
    connection.close()
    return read


def waits_of(answers: Sequence[Answered], read: Sequence[tuple[float, int]]) -> list[float]:
    """For each like of the watched page the time from its answer until the board showed it.

    A user's second like changes nothing and is left out: its answer has a number that was answered before.
    """
    values = [value for _, value in read]
    counted: set[int] = {*values[:1]}
    waits: list[float] = []
    for answer in answers:
        if answer.number % WATCHED_IN or answer.status >= 400:
            continue
        likes = int(orjson.loads(answer.body)["likes"])
        place = bisect_left(values, likes)
        if likes not in counted and place < len(read):
            waits.append(max(0.0, read[place][0] - answer.at))
        counted.add(likes)
    return waits
