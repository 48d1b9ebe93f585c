"""The process for sockets and Server-Sent Events, apart from the API so that open ones never take its capacity.

Each connection is a `Follower` of the Hub with one writer. Sockets and streams send the same frames.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import flask
import marshmallow as ma
import orjson
from flask import Flask, Response, g, request
from flask_sock import Sock
from simple_websocket import Server
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from werkzeug.routing.exceptions import WebsocketMismatch
from wsproto.utilities import RemoteProtocolError

from analytics.boards.names import Board
from analytics.metrics import METRICS
from analytics.quests import topics
from analytics.quests.topics import QuestTopic
from analytics.windows import Window
from app.api import docs, health, metrics
from app.api.blueprint import PlauditApi, Schema, load, metric_field
from app.http import errors, services
from app.http.auth import caller_network
from app.http.boards import board_for
from app.http.rights import public
from app.http.services import essentials
from app.live import admission, connection
from app.live.admission import Guest
from app.live.follower import Followed, Follower
from app.live.hub import NO_LONGER_VALID, POLICY_VIOLATION, Hub
from app.live.services import LiveServices, live_services
from app.live.tops import Top
from app.settings import Settings
from app.web import connect, new_flask, register_as, secret_key
from tenants import logs
from tenants.db import utcnow
from tenants.errors import DomainError, Forbidden, Invalid, Malformed, Unavailable
from tenants.signing import Signer

MAX_TOP_ROWS = 100
MAX_MESSAGE_BYTES = 4096
# Messages that one client may send: at once, and each second.
MAX_BURST_MESSAGES, MAX_MESSAGES_PER_S = 60, 10
COMMENT_EVERY_S = 15.0
RENEW_TOKEN_EVERY_S = 60.0
# Small, so that a client that does not read is noticed, and costs little until then.
KERNEL_BUFFER_BYTES = 64 * 1024
TCP_USER_TIMEOUT_MS = 10_000
# The first byte of TCP_INFO.
TCP_ESTABLISHED = b"\x01"

sock = Sock()
blueprint = flask.Blueprint("live", __name__)


def create_live_app(settings: Settings | None = None) -> Flask:
    """The application that `plaudit live` serves (gunicorn calls it in its worker, after gevent has patched)."""
    settings = settings or Settings.from_env()
    connect(settings)
    app = new_flask(settings)
    app.config["SOCK_SERVER_OPTIONS"] = {"max_message_size": MAX_MESSAGE_BYTES}
    signer = Signer(issuer=settings.public_url, secret_key=secret_key(settings))
    services.install(app, LiveServices(settings, signer, hub=Hub()))
    register_as("live", settings)
    app.register_error_handler(RemoteProtocolError, _answer_bad_handshake)
    app.register_error_handler(WebsocketMismatch, _answer_mismatch)
    # One connection may send many requests at once: other greenlets run between them.
    app.before_request(lambda: time.sleep(0))
    api = PlauditApi(app)
    for module in (health, metrics):
        api.register_blueprint(module.blueprint)
    app.register_blueprint(blueprint)
    docs.declare_static(app)
    return app


class FollowIn(Schema):
    op = ma.fields.String()
    scope = ma.fields.String(validate=ma.validate.Length(1, 80))
    window = ma.fields.Enum(Window, by_value=True, load_default=Window.WEEK)
    metric = metric_field(METRICS.values())
    top = ma.fields.Integer(strict=True, validate=ma.validate.Range(1, MAX_TOP_ROWS))


class UnknownOp(Invalid):
    code = "unknown_op"
    title = "op: subscribe, unsubscribe or ping"


class TooManyMessages(Forbidden):
    code = "rate_limited"
    title = f"At most {MAX_MESSAGES_PER_S} messages a second"


@blueprint.before_request
def admit() -> None:
    """Before the upgrade: after it a refusal could not be explained."""
    g.seq = 0
    match request.endpoint:
        case "live.scoreboard":
            g.guest = admission.admit_to_scoreboard()
            top10 = board_for(g.guest.reader, {"scope": "users", "window": Window.ALL})
        case "live.stream":
            g.guest, g.seq = admission.admit_by_ticket_or_resume()
        case _:
            g.guest = admission.admit_by_ticket()
    guest: Guest = g.guest
    logs.bind(tenant_id=guest.reader.tenant_id, user_id=guest.holder.id if guest.holder else None)
    if request.endpoint != "live.stream":
        if request.method != "GET":
            raise Malformed("A websocket is opened with GET")
        g.follower = _follower("socket")
        live_services().hub.join(g.follower)
        if request.endpoint == "live.scoreboard":
            g.follower.follow(top10, top=10)
        request.environ.pop("HTTP_SEC_WEBSOCKET_EXTENSIONS", None)  # compression would cost memory for each connection
        raw = request.environ.get("gunicorn.socket")
        if raw is not None:
            request.environ["gunicorn.socket"] = connection.GuardedSocket(raw)


@blueprint.teardown_request
def leave(_error: BaseException | None) -> None:
    """Also after an error. (A stream outlives its request and leaves when it is closed.)"""
    follower = g.pop("follower", None)
    if follower is not None:
        live_services().hub.leave(follower)


@sock.route("/ws/leaderboards", bp=blueprint)
@public
def boards(ws: Server) -> None:
    """Follow boards: subscribe, unsubscribe, ping."""
    follower: Follower = g.follower
    connection.serve(ws, follower, _Messages(follower).answer)


@sock.route("/ws/scoreboard/top10", bp=blueprint)
@public
def scoreboard(ws: Server) -> None:
    """The tenant's ten best users, at once and whenever they change."""
    follower: Follower = g.follower
    connection.serve(ws, follower, _Messages(follower, ops={"ping"}).answer)


@blueprint.get("/api/v1/live/events")
@public
def stream() -> Response:
    """The same as Server-Sent Events: `topic` once or more, `top` for rows instead of invalidations."""
    guest: Guest = g.guest
    follower = _follower("stream", seq=g.seq)
    wanted = [_board_named(follower, topic) for topic in dict.fromkeys(request.args.getlist("topic"))]
    if not wanted:
        raise Invalid.field("topic", "<scope>:<window>:<metric>, once or more", detail="topic: name at least one")
    top = load(FollowIn(), {"top": request.args.get("top", type=int)}).get("top") if "top" in request.args else None
    hub = live_services().hub
    hub.join(follower)
    try:
        for board in wanted:
            follower.follow(board, top)
    except BaseException:
        hub.leave(follower)
        raise
    signer = essentials().signer
    token_now = partial(admission.resume_token, guest.holder, signer) if guest.holder is not None else str
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    response = Response(_events(follower, token_now), mimetype="text/event-stream", headers=headers)
    response.call_on_close(partial(hub.leave, follower))  # also for a HEAD, which never starts the generator
    return response


def _events(follower: Follower, token_now: Callable[[], str]) -> Iterator[bytes]:
    sent_at = token_at = time.monotonic()
    token = token_now().encode()
    retry = b"retry: 2000\n"  # with the first event: alone it would be none
    while True:
        follower.wake.clear()
        if time.monotonic() - token_at >= RENEW_TOKEN_EVERY_S:
            token, token_at = token_now().encode(), time.monotonic()
        if follower.close_code is not None:
            break
        for frame in follower.frames():
            follower.sending_since = sent_at = time.monotonic()
            yield b"%bid: %d.%b\ndata: %b\n\n" % (retry, follower.seq, token, frame)
            retry = b""
            follower.sending_since = None
        if time.monotonic() - sent_at >= COMMENT_EVERY_S:
            follower.sending_since = sent_at = time.monotonic()
            # Without data it is no event, but the browser keeps the id.
            yield b": still here\nid: %d.%b\n\n" % (follower.seq, token)
            follower.sending_since = None
        follower.wake.wait(COMMENT_EVERY_S)
        time.sleep(connection.PACE_S)
    # A browser reconnects automatically, also after its session has ended: send it the reason not to.
    if follower.close_code == NO_LONGER_VALID:
        detail = "The credential that opened this stream is no longer valid"
        yield b"data: %s\n\n" % follower.frame("error", code="invalid_ticket", detail=detail)


class _Messages:
    """The messages that a client may send on a socket, and their answers."""

    def __init__(self, follower: Follower, ops: Iterable[str] = ("subscribe", "unsubscribe", "ping")) -> None:
        self._follower = follower
        self._ops = frozenset(ops)
        self._allowance, self._at = float(MAX_BURST_MESSAGES), time.monotonic()

    def answer(self, message: str | bytes) -> Iterator[bytes]:
        try:
            self._limit_rate()
            yield from self._handle(_parse(message))
        except DomainError as error:
            fields = {"errors": error.errors} if error.errors else {}
            yield self._follower.frame("error", code=error.code, detail=error.detail, **fields)
            if isinstance(error, TooManyMessages):
                self._follower.end(POLICY_VIOLATION)

    def _limit_rate(self) -> None:
        now = time.monotonic()
        refill = (now - self._at) * MAX_MESSAGES_PER_S
        self._allowance = min(float(MAX_BURST_MESSAGES), self._allowance + refill)
        self._at = now
        if self._allowance < 1:
            raise TooManyMessages
        self._allowance -= 1

    def _handle(self, message: dict[str, Any]) -> Iterator[bytes]:
        op = message.get("op")
        if not isinstance(op, str) or op not in self._ops:
            raise UnknownOp.field("op", " or ".join(sorted(self._ops)))
        if op == "ping":
            yield self._follower.frame("pong", timestamp=utcnow())
            return
        board, top = _wanted(self._follower, message)
        if op == "subscribe":
            try:
                self._follower.follow(board, top)
            except (DBAPIError, PoolTimeoutError):
                self._follower.unfollow(board)
                raise Unavailable("The board's version cannot be read at the moment: try again") from None
        else:
            self._follower.unfollow(board)


@dataclass(eq=False)
class _Scoreboard(Follower):
    """Sends only the rows, and only when they changed."""

    confirms: bool = False

    def top_frames(self, followed: Followed, top: Top) -> Iterable[bytes]:
        if followed.sent_rows is None or top.changed_positions(followed.sent_rows):
            yield from super().top_frames(followed, top)


def _follower(kind: str, *, seq: int = 0) -> Follower:
    guest: Guest = g.guest
    raw: socket.socket | None = request.environ.get("gunicorn.socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)

    def abort() -> None:
        if raw is not None:
            # Through another handle: gevent would end a wait on this one with an error of its own, and a traceback.
            with contextlib.closing(socket.socket(fileno=os.dup(raw.fileno()))) as same:
                same.shutdown(socket.SHUT_RDWR)

    def is_disconnected() -> bool:
        """A stream is never read from, so only the kernel knows that its client has closed it."""
        return raw is not None and kind == "stream" and not _is_established(raw)

    def is_valid(follower: Follower) -> bool:
        """Also unfollows the boards that the reader may no longer read."""
        reader = guest.reader_now()
        if reader is None:
            return False
        follower.reader = reader
        if reader.public_only and guest.holder is not None:
            for board in [one.board for one in follower.follows.values() if isinstance(one.board, Board)]:
                try:
                    board_for(reader, {"scope": board.scope, "window": board.window, "metric": board.metric.name})
                except Forbidden:
                    follower.unfollow(board)
        return True

    follower_class = _Scoreboard if request.endpoint == "live.scoreboard" else Follower
    checks = (is_valid, abort, is_disconnected)
    hub, address = live_services().hub, caller_network()
    return follower_class(hub, kind, guest.reader, guest.holder, *checks, address=address, seq=seq)


def _is_established(raw: socket.socket) -> bool:
    return raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == TCP_ESTABLISHED


def _wanted(follower: Follower, message: dict[str, Any]) -> tuple[Board | QuestTopic, int | None]:
    """What a message is about, and how many rows are wanted."""
    if isinstance(message.get("topic"), str) and message.keys() == {"op", "topic"}:
        return _board_named(follower, message["topic"]), None
    wanted = load(FollowIn(), message)
    return board_for(follower.reader, wanted), wanted.get("top")


def _quests_named(follower: Follower, topic: str) -> QuestTopic:
    """For those who may read quests; a user's own only for that user, and for clients."""
    named, holder = topics.parse(follower.reader.tenant_id, topic), follower.holder
    is_other = (
        named.user_id is not None and holder is not None and holder.kind == "user" and holder.id != str(named.user_id)
    )
    if holder is None or holder.kind == "key" or is_other:
        raise Forbidden("These quests are for somebody else")
    return named


def _board_named(follower: Follower, topic: str) -> Board | QuestTopic:
    if topics.is_topic(topic):
        return _quests_named(follower, topic)
    rest, _, metric = topic.rpartition(":")
    scope, _, window = rest.rpartition(":")
    try:
        return board_for(follower.reader, load(FollowIn(), {"scope": scope, "window": window, "metric": metric}))
    except Invalid as error:
        raise Invalid.field("topic", error.detail) from None


def _parse(message: str | bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(message)
    except ValueError:
        raise Malformed("Send JSON") from None
    if not isinstance(parsed, dict):
        raise Malformed("Send a JSON object")
    return parsed


def _answer_mismatch(error: WebsocketMismatch) -> Response:
    """A socket's address in a plain request, which leaves its ticket unused; or an upgrade at another address."""
    if "Upgrade" in request.headers:
        return errors.answer_http_error(error)
    return errors.answer_domain_error(errors.UpgradeRequired())


def _answer_bad_handshake(_error: RemoteProtocolError) -> Response:
    if request.headers.get("Sec-WebSocket-Version") != "13":
        return errors.problem(
            426,
            code="upgrade_required",
            title="The websocket protocol's version is not supported",
            detail="This server supports version 13",
            headers={**errors.UpgradeRequired.headers, "Sec-WebSocket-Version": "13"},
        )
    return errors.answer_domain_error(Malformed("This is not a valid websocket handshake"))
