"""More than the API can do: what is refused, how soon, and how long the others wait, at fixed rates.

One web process, so that the generator has the other processor. Batches of views, on each of which a thread works; and
what the event loop answers itself: single views, and reads whose answer is kept. By several tenants, none of which
reaches its share. What a process can do is measured first, by a closed loop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import orjson

from app.run.data_folder import read_state
from loadtests.bench_neighbours import make_tenant
from loadtests.blast import blast, request
from loadtests.open_loop import Outcome, offer, percentile
from loadtests.service import Service, demo

TENANTS = 8
EVENTS = 50
# Overload is what lasts for 0.1 s: what is let in until then is answered within this time, and not measured.
SETTLE_S = 1.0
# A row is worth nothing if the generator sends later than that.
MAX_LATE_MS = 20.0
# Multiples of its capacity; the last one shows the recovery.
LOADS = (0.8, 2.0, 5.0, 0.8)
MAX_REFUSAL_MS = 100.0
MAX_P99_RATIO = 2.0


@dataclass(frozen=True)
class Sender:
    name: str
    send: Callable[[list[str], int], bytes]
    # In flight, to find out what the process can do.
    connections: int


def overload(seconds: float) -> None:
    with demo(PLAUDIT_WEB_PROCESSES="1") as service:
        state = read_state(service.data_dir)
        assert state is not None
        tokens = [make_tenant(service, state["addresses"], number) for number in range(TENANTS)]
        for sender in SENDERS:
            _overload(service, sender, partial(sender.send, tokens), seconds)


def _overload(service: Service, sender: Sender, send: Callable[[int], bytes], seconds: float) -> None:
    name, port = sender.name, int(service.url.rsplit(":", 1)[1])
    for _ in range(2):  # the first warms up
        capacity = blast(port, partial(_from_connection, send), connections=sender.connections, seconds=seconds)
    print(f"{name}, {TENANTS} tenants, one web process: {capacity.per_second:,.0f}/s at most")
    usual_p99 = 0.0
    for load in LOADS:
        outcome = offer(port, send, per_second=load * capacity.per_second, seconds=seconds, settle_s=SETTLE_S)
        usual_p99 = usual_p99 or percentile(outcome.accepted, 0.99)
        _print(load, outcome, usual_p99, memory_mb=_memory_mb(service))


def _print(load: float, outcome: Outcome, usual_p99: float, *, memory_mb: float) -> None:
    accepted, refused = outcome.accepted, outcome.refused
    p50, p99 = percentile(accepted, 0.5), percentile(accepted, 0.99)
    refusal_p99, late = percentile(refused, 0.99), percentile(outcome.late_ms, 0.99)
    print(
        f"  {load:>3g} x   accepted {len(accepted) / outcome.seconds:>6,.0f}/s   p50 {p50:6.0f} ms"
        f"   p99 {p99:6.0f} ms ({p99 / usual_p99:.1f} x)   refused {len(refused) / outcome.seconds:>6,.0f}/s"
        f"   p99 {refusal_p99:6.0f} ms   {memory_mb:.0f} MB   {outcome.statuses}"
        f"{f'   unanswered {outcome.unanswered}' if outcome.unanswered else ''}"
        f"{f'   not sent {outcome.unsent}' if outcome.unsent else ''}"
    )
    if late > MAX_LATE_MS:
        print(f"           of no worth: the generator was too slow, and sent up to {late:,.0f} ms late")
    elif p99 > MAX_P99_RATIO * usual_p99 or (refused and refusal_p99 > MAX_REFUSAL_MS):
        print(
            f"           MISSED: refusals within {MAX_REFUSAL_MS:g} ms, p99 at most {MAX_P99_RATIO:g} x the first row's"
        )


def _memory_mb(service: Service) -> float:
    """Return the memory of the web process that answers: the largest child of the one that starts them."""
    sizes = [child.memory_info().rss for web in service.processes() for child in web.children() if "web" in web.name()]
    return max(sizes, default=0) / 1e6


def _from_connection(send: Callable[[int], bytes], _process: int, connection: int, number: int) -> bytes:
    return send(connection + number)


def _batch(tokens: list[str], number: int) -> bytes:
    name = f"{time.monotonic_ns()}-{number}"
    events = [{"type": "view", "page": "home", "id": f"{name}-{n}"} for n in range(EVENTS)]
    headers = {"Authorization": f"Bearer {tokens[number % len(tokens)]}", "Content-Type": "application/json"}
    return request("POST", "/api/v1/events", headers=headers, body=orjson.dumps({"events": events}))


def _view(tokens: list[str], number: int) -> bytes:
    headers = {"Authorization": f"Bearer {tokens[number % len(tokens)]}", "Content-Type": "application/json"}
    return request(
        "POST", "/api/v1/pages/home/views", headers=headers, body=b'{"id":"%d-%d"}' % (time.monotonic_ns(), number)
    )


def _kept_read(tokens: list[str], number: int) -> bytes:
    headers = {"Authorization": f"Bearer {tokens[number % len(tokens)]}"}
    return request("GET", "/api/v1/leaderboards?limit=10", headers=headers)


SENDERS = (
    Sender(f"Batches of {EVENTS} views", _batch, connections=32),
    Sender("Single views", _view, connections=256),
    Sender("Kept reads", _kept_read, connections=64),
)
