"""The application behind the real web server: the same answers, from the event loop or from a thread."""

import gzip
import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.boards import projection, reading
from analytics.ingest.group_commit import GroupCommit, Overloaded
from analytics.ingest.loop_commit import LoopCommit
from app import machine
from app.http.fast_lane import FastLane
from app.server import front, wsgi_calls
from app.server.door import MAX_FOR_OPERATORS, Door, QueueDoor
from app.server.front import Front
from app.server.requests import Request
from tenants import users
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import likes_of, views_of
from tests.app.http.lanes import answer_of, by_the_route
from tests.app.http.test_exports import EXPORT
from tests.app.http.test_exports import fill as fill_board
from tests.app.http.test_fast_reads import BOARD, RANK, READS, fill
from tests.app.server.served import VIEWS, become_known, over_http, served
from tests.conftest import make_tenant
from tests.people import Caller, client_of, user_of
from tests.service import eventually


def test_reads_over_http_are_those_of_the_routes(client: FlaskClient, app: Flask) -> None:
    tenant = make_tenant()
    readers = [fill(client, tenant), *(user_of(client, tenant, sees_private=sees) for sees in (True, False))]
    with served(app) as url:
        for reader in readers:
            for path in READS:
                for _ in range(2):  # computed, and kept
                    expected = by_the_route(reader, "GET", path)
                    assert answer_of(over_http(reader, url), "GET", path) == expected, path


WRITES: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", "/api/v1/pages/a/likes/ada", {}),
    ("DELETE", "/api/v1/pages/a/likes/ada", {}),
    ("PUT", "/api/v1/pages/nowhere/likes/ada", {}),
    ("PUT", "/api/v1/pages/a%00b/likes/ada", {}),
    ("PUT", "/api/v1/pages/a/likes/not%20a%20user", {}),
    ("PUT", "/api/v1/pages/a/like", {}),
    ("POST", "/api/v1/pages/a/like", {}),
    ("POST", VIEWS, {"json": {}}),
    ("POST", VIEWS, {"json": {"id": "one"}}),
    ("POST", VIEWS, {"json": {"id": ""}}),
    ("POST", VIEWS, {"json": {"id": "nul\x00"}}),
    ("POST", VIEWS, {"json": {"id": 7}}),
    ("POST", VIEWS, {"json": {"id": "one", "user": "u"}}),
    ("POST", VIEWS, {"json": {"id": "one", "more": "u"}}),
    ("POST", VIEWS, {"data": b'{"id": "one"}', "content_type": "text/plain"}),
    ("POST", VIEWS, {"data": b'{"id": "one"}'}),
    ("POST", VIEWS, {"data": b'{"id": "\\ud800"}', "content_type": "application/json"}),
    ("POST", VIEWS, {"data": b"{", "content_type": "application/json"}),
    ("POST", VIEWS, {"data": b"", "content_type": "application/json"}),
    ("POST", "/api/v1/pages/nowhere/views", {"json": {"id": "one"}}),
    ("POST", "/api/v1/pages/not%20one/views", {"json": {"id": "one"}}),
    (
        "POST",
        VIEWS,
        {
            "data": gzip.compress(b'{"id": "one"}'),
            "content_type": "application/json",
            "headers": {"Content-Encoding": "gzip"},
        },
    ),
    ("POST", VIEWS, {"data": b"x" * 1_048_577 + b"{}", "content_type": "application/json"}),
    ("POST", "/api/v1/events", {"json": {"events": [{"type": "view", "page": "a"}, {"type": "view"}]}}),
    ("GET", "/nowhere", {}),
    ("GET", "/", {}),
    ("OPTIONS", BOARD, {"headers": {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}}),
]


def test_writes_over_http_are_those_of_the_routes(client: FlaskClient, tenant: str, admin: Caller, url: str) -> None:
    callers = [admin, *(user_of(client, tenant, sees_private=sees) for sees in (True, False))]
    for caller in callers:
        for method, path, options in WRITES:
            answer_of(caller, method, path, **_copy(options))  # what is created is there, an id was seen
            expected = by_the_route(caller, method, path, **_copy(options))
            answer = answer_of(over_http(caller, url), method, path, **_copy(options))
            if answer[0] == 204:  # the server leaves out that nothing follows
                expected[1].pop("content-length", None)
            assert answer == expected, (method, path, options)


def _copy(options: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if name == "headers" else value for name, value in options.items()}


def test_claims_over_http_are_paid_once_and_answered_as_the_route_does(
    client: FlaskClient, tenant: str, admin: Caller, url: str
) -> None:
    assert admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10}).status_code == 200
    player = user_of(client, tenant)
    body = {"actionId": str(uuid4()), "actionType": "post", "timestamp": utcnow().isoformat()}
    remote = over_http(player, url)
    first = answer_of(remote, "POST", "/api/v1/scores/update", json=body)
    assert (first[0], first[2]["score"]) == (200, 10)
    again = [lane(who, "POST", "/api/v1/scores/update", json=body) for lane, who in lanes(player, remote)]
    assert again[0] == again[1]
    refused = {**body, "actionType": "fly"}
    answers = [lane(who, "POST", "/api/v1/scores/update", json=refused) for lane, who in lanes(player, remote)]
    assert answers[0] == answers[1]
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM score_ledger")) == 1
        assert {row.ip for row in tx.execute(text("SELECT ip FROM action_events"))} == {ip_address("127.0.0.1")}


def lanes(local: Caller, remote: Caller) -> list[tuple[Any, Caller]]:
    return [(by_the_route, local), (answer_of, remote)]


def test_plain_calls_take_no_thread_once_their_caller_is_known(
    admin: Caller, tenant: str, url: str, in_threads: list[str]
) -> None:
    remote = over_http(admin, url)
    paths = [BOARD, f"{RANK}?member=a&around=5", f"{RANK}?member=b&around=5"]

    def took_none() -> bool:
        in_threads.clear()
        answers = [
            *(remote("GET", path) for path in paths),
            remote("POST", VIEWS, json={"id": uuid4().hex}),
            remote("POST", VIEWS),
            remote("PUT", "/api/v1/pages/a/likes/ada"),
        ]
        assert [answer.status_code for answer in answers] == [200] * 3 + [202, 202, 200]
        return not in_threads

    eventually(took_none)  # summaries, keys and settings are read by the first


def test_a_read_that_is_not_kept_asks_redis_together_with_others(
    client: FlaskClient, admin: Caller, tenant: str, url: str, in_threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = over_http(admin, url)
    asked: list[int] = []
    become_known(remote, in_threads)
    read_together = reading.read_together

    def counting(questions: Any, **options: Any) -> Any:
        asked.append(len(questions))
        time.sleep(0.05)
        return read_together(questions, **options)

    monkeypatch.setattr(reading, "read_together", counting)
    in_threads.clear()
    with ThreadPoolExecutor(20) as senders:
        answers = list(senders.map(lambda n: remote("GET", f"{RANK}?member=a&around={n}"), range(1, 21)))
    assert {answer.status_code for answer in answers} == {200}
    assert sum(asked) == 20
    assert len(asked) < 10
    assert in_threads == []


def test_what_must_wait_for_something_else_goes_to_a_thread(
    app: Flask, admin: Caller, url: str, in_threads: list[str]
) -> None:
    remote = over_http(admin, url)
    become_known(remote, in_threads)
    lane: Any = app.wsgi_app
    assert isinstance(lane, FastLane)
    lane._callers._signer._loaded = None  # the signing keys are to be read again
    in_threads.clear()
    assert remote("POST", VIEWS).status_code == 202
    assert in_threads == [VIEWS]


def test_a_view_that_names_its_user_is_written_by_a_thread_with_the_name(
    admin: Caller, tenant: str, url: str, in_threads: list[str]
) -> None:
    caller = over_http(admin, url)
    with tenant_tx(tenant) as tx:
        users.ensure_external(tx, "ann", now=utcnow())
    for _ in range(2):  # the caller is known by the second
        view = {"user": {"id": "ann", "name": "Ann"}}
        assert answer_of(caller, "POST", VIEWS, json=view)[0] == 202
    assert in_threads.count(VIEWS) == 2
    with tenant_tx(tenant) as tx:
        assert users.find(tx, "ext:ann").display_name == "Ann"


def test_what_was_written_or_refused_is_not_tried_again_by_a_thread(
    admin: Caller, tenant: str, url: str, in_threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = over_http(admin, url)
    become_known(remote, in_threads)
    before = admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"].get("unknown_page", 0)
    assert remote("PUT", "/api/v1/pages/nowhere/likes/ada").status_code == 404
    assert in_threads == ["/api/v1/pages/nowhere/likes/ada"], "the route words the refusal"
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"]["unknown_page"] == before + 1

    tries: list[str] = []

    def fail(self: LoopCommit, request: Any, decided: Any) -> None:
        tries.append("submit")
        request.error = Overloaded()
        decided(True)

    monkeypatch.setattr(LoopCommit, "submit", fail)
    monkeypatch.setattr(GroupCommit, "write", lambda *_: tries.append("write"))
    answer = remote("PUT", "/api/v1/pages/a/likes/ada")
    assert (answer.status_code, answer.get_json()["code"], tries) == (503, "overloaded", ["submit"])


def test_what_the_loop_wrote_is_a_call_in_flight_until_a_thread_has_answered_it(
    app: Flask, admin: Caller, tenant: str, url: str, in_threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lane: Any = app.wsgi_app
    remote, in_flight = over_http(admin, url), list[dict[str, int]]()
    become_known(remote, in_threads)
    answer = wsgi_calls.answer

    def look_and_answer(*arguments: Any) -> None:
        in_flight.append(dict(lane._in_flight._tenants[tenant].in_use))
        answer(*arguments)

    monkeypatch.setattr(wsgi_calls, "answer", look_and_answer)
    assert remote("PUT", "/api/v1/pages/nowhere/likes/ada").status_code == 404
    assert in_flight == [{f"client:{admin.id}": 1}]
    eventually(lambda: not lane._in_flight._tenants)


def test_what_the_loop_did_not_write_is_written_by_a_thread(
    admin: Caller, tenant: str, url: str, in_threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = over_http(admin, url)
    become_known(remote, in_threads)
    before = views_of(tenant)

    def leave(self: LoopCommit, request: Any, decided: Any) -> None:
        decided(False)

    monkeypatch.setattr(LoopCommit, "submit", leave)
    in_threads.clear()
    assert remote("POST", VIEWS).status_code == 202
    assert in_threads == [VIEWS]
    assert views_of(tenant) == before + 1


def test_a_tenant_with_many_calls_in_flight_waits_for_its_share_of_threads(
    app: Flask, admin: Caller, url: str, in_threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = over_http(admin, url)
    become_known(remote, in_threads)
    lane: Any = app.wsgi_app
    monkeypatch.setattr(lane._in_flight, "_size", 0)
    assert remote("POST", VIEWS).status_code == 202
    assert in_threads == [VIEWS]


def test_a_revoked_token_is_refused_on_the_loop_too(client: FlaskClient, tenant: str, admin: Caller, url: str) -> None:
    sender = client_of(client, tenant, "events:write", "stats:read")
    remote = over_http(sender, url)
    for _ in range(3):
        assert remote("GET", BOARD).status_code == 200
        assert remote("POST", VIEWS).status_code == 202
    assert admin("DELETE", f"/api/v1/clients/{sender.id}").status_code == 204
    assert [remote("GET", BOARD).status_code, remote("POST", VIEWS).status_code] == [401, 401]


def test_many_writers_at_once_lose_nothing(admin: Caller, tenant: str, url: str) -> None:
    remote = over_http(admin, url)
    before = views_of(tenant)

    def write(number: int) -> int:
        if number % 3 == 0:
            return remote("POST", VIEWS, json={"id": f"e{number // 6}"}).status_code
        if number % 3 == 1:
            return remote("PUT", f"/api/v1/pages/a/likes/u{number}").status_code
        return admin("POST", "/api/v1/pages/b/views").status_code  # from a thread, by the same group commit

    with ThreadPoolExecutor(24) as senders:
        statuses = list(senders.map(write, range(240)))
    assert set(statuses) == {200, 202}
    assert views_of(tenant) == before + 40 + 80, "an id counts once"
    assert likes_of(tenant, "a")[0] == 81


def test_a_long_answer_comes_whole_and_one_that_is_not_read_ends(client: FlaskClient, tenant: str, app: Flask) -> None:
    fill_board(tenant)
    admin = client_of(client, tenant)
    with served(app) as url:
        answer = over_http(admin, url)("GET", EXPORT)
        assert answer.data.count(b"\n") == 3_001
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
        connection.request("GET", EXPORT, headers={"Authorization": f"Bearer {admin.token}"})
        assert connection.getresponse().read(100)
        connection.close()
        eventually(lambda: app.extensions["plaudit"].exports._all == 0)


def test_what_fails_outside_of_a_route_is_answered_and_logged(
    app: Flask, admin: Caller, url: str, monkeypatch: pytest.MonkeyPatch, logged: Any
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(app, "wsgi_app", fail)
    assert over_http(admin, url)("GET", "/api/v1/me").status_code == 500
    assert any(line["action"] == "request.failed" for line in logged())


def test_boards_follow_what_was_written_over_http(admin: Caller, tenant: str, url: str) -> None:
    remote = over_http(admin, url)
    path = f"{BOARD}?metric=views"

    def values() -> list[float]:
        return [item["value"] for item in remote("GET", path).get_json()["items"]]

    before = values()
    assert remote("POST", VIEWS).status_code == 202
    projection.project_all(tenant, now=utcnow)
    eventually(lambda: sum(values()) == sum(before) + 1)


def test_callers_and_pages_that_are_new_are_looked_up_together_without_a_thread_each(
    client: FlaskClient, admin: Caller, tenant: str, url: str, in_threads: list[str]
) -> None:
    become_known(over_http(admin, url), in_threads)
    members = [over_http(user_of(client, tenant), url) for _ in range(8)]
    in_threads.clear()
    with ThreadPoolExecutor(8) as senders:
        likes = list(senders.map(lambda member: member("PUT", "/api/v1/pages/a/like"), members))
        ranks = list(senders.map(lambda member: member("GET", f"{RANK}?member=b&around=2"), members))
    assert {answer.status_code for answer in (*likes, *ranks)} == {200}
    assert in_threads == []


def test_who_stays_unknown_is_answered_by_the_route(
    client: FlaskClient, admin: Caller, tenant: str, url: str, in_threads: list[str]
) -> None:
    remote = over_http(admin, url)
    become_known(remote, in_threads)
    ended = over_http(user_of(client, tenant), url)
    assert ended("POST", "/api/v1/auth/logout").status_code == 204
    in_threads.clear()
    assert ended("PUT", "/api/v1/pages/a/like").status_code == 401
    assert remote("GET", BOARD, headers={"Authorization": "Bearer nonsense"}).status_code == 401
    assert remote("GET", f"{RANK}?member=nowhere").status_code == 404
    assert in_threads == ["/api/v1/pages/a/like", BOARD, RANK]


def test_a_request_is_refused_and_never_executed_if_no_thread_can_be_started_for_it(
    app: Flask, admin: Caller, doors: list[Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []
    has_begun, may_end = threading.Event(), threading.Event()
    answer, start = wsgi_calls.answer, threading.Thread.start

    def slow(app: Any, request: Request, submitted_at: float) -> None:
        paths.append(request.environ["PATH_INFO"])
        has_begun.set()
        may_end.wait(10)
        answer(app, request, submitted_at)

    def fail(thread: threading.Thread) -> None:
        if thread.name.startswith("web"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(wsgi_calls, "answer", slow)
    with served(app) as url, ThreadPoolExecutor(1) as senders:
        remote = over_http(admin, url)
        first = senders.submit(remote, "GET", "/first")
        assert has_begun.wait(10)
        with monkeypatch.context() as without_threads:
            without_threads.setattr(threading.Thread, "start", fail)
            refused = remote("GET", "/refused")
        assert (refused.status_code, refused.get_json()["code"]) == (503, "overloaded")
        may_end.set()
        assert [first.result().status_code, remote("GET", "/last").status_code] == [404, 404]
    assert paths == ["/first", "/last"]
    (door,) = doors
    door._catch_up()
    assert (door._waiting, door._inside.count, door._inside._of_tenants) == ({}, 0, {})


def test_a_flood_of_health_checks_is_refused(app: Flask, admin: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    answer = wsgi_calls.answer

    def slow(app: Any, request: Request, submitted_at: float) -> None:
        may_end.wait(30)
        answer(app, request, submitted_at)

    monkeypatch.setattr(wsgi_calls, "answer", slow)
    with served(app) as url, ThreadPoolExecutor(MAX_FOR_OPERATORS + 4) as senders:
        remote = over_http(admin, url)
        asked = [senders.submit(remote, "GET", "/health/ready") for _ in range(MAX_FOR_OPERATORS + 4)]
        eventually(lambda: sum(one.done() for one in asked) == 4)
        assert {one.result().get_json()["code"] for one in asked if one.done()} == {"overloaded"}
        may_end.set()
        assert sorted(one.result().status_code for one in asked) == [200] * MAX_FOR_OPERATORS + [503] * 4


CLAIM = "/api/v1/scores/update"


@pytest.mark.parametrize(
    ("the_door", "method", "path", "expected"),
    [
        ("_event_door", "POST", VIEWS, 202),
        ("_event_door", "PUT", "/api/v1/pages/a/likes/ada", 200),
        ("_claim_door", "POST", CLAIM, 403),
        ("_read_door", "GET", f"{RANK}?member=a&around=", 200),
    ],
)
def test_calls_beyond_what_the_loop_answers_in_time_are_refused_without_a_thread(
    app: Flask,
    admin: Caller,
    in_threads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    the_door: str,
    method: str,
    path: str,
    expected: int,
) -> None:
    """Each door decides about its calls only."""
    open_to: dict[QueueDoor, bool] = {}
    monkeypatch.setattr(QueueDoor, "is_open_to", lambda self, _: open_to.get(self, True))
    fronts: list[Front] = []
    drive = Front.start

    def start(self: Front, loop: Any) -> Any:
        fronts.append(self)
        return drive(self, loop)

    monkeypatch.setattr(Front, "start", start)
    with served(app) as url:
        remote = over_http(admin, url)
        become_known(remote, in_threads)
        (one,) = fronts
        monkeypatch.setattr(one._lane._in_flight, "_size", 1)
        closed: QueueDoor = getattr(one, the_door)
        for number, is_open in enumerate((True, False, True)):
            open_to[closed] = is_open
            in_threads.clear()
            target = f"{path}{number}" if path.endswith("=") else path
            answer = remote(method, target, **({"json": {}} if path == CLAIM else {}))
            if is_open:
                assert answer.status_code == expected
                assert in_threads == [] or path == CLAIM, "nothing is left of what was refused"
                continue
            assert (answer.status_code, answer.get_json()["code"]) == (503, "overloaded")
            assert answer.headers["Retry-After"] == "1"
            assert in_threads == []
        for door in (one._event_door, one._claim_door, one._read_door):
            assert (door._inside.count, door._inside._of_tenants) == (0, {})


def test_connections_are_as_many_as_the_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = []
    for memory in (2**28, 2**29, 2**36):
        monkeypatch.setattr(machine, "machine_memory", lambda memory=memory: memory)
        allowed.append([front._max_connections(processes) for processes in (1, 2)])
    assert allowed[:2] == [[256, 128], [512, 256]]
    assert allowed[2][0] > 512
