"""The process for sockets and Server-Sent Events, apart from the API so that open ones never take its capacity.

Each connection is a `Follower` of the Hub with one writer. The sockets and the stream say the same, in the same words.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator
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
from wsproto.utilities import RemoteProtocolError

from analytics.boards.names import Board
from analytics.metrics import METRICS
from analytics.windows import Window
from app.api import docs, health, metrics
from app.api.blueprint import PlauditApi, Schema, load, metric_field
from app.http import errors, services
from app.http.auth import caller_network
from app.http.boards import board_for
from app.http.rights import public
from app.live import admission, connection
from app.live.admission import Guest
from app.live.hub import NO_LONGER_VALID, TOO_MUCH, Followed, Follower, Hub
from app.live.services import LiveServices, live_services
from app.live.tops import Top
from app.settings import Settings
from app.web import connect, new_flask, secret_key
from tenants import logs
from tenants.db import utcnow
from tenants.errors import DomainError, Forbidden, Invalid, Malformed, Unavailable
from tenants.signing import Signer

MOST_TOP = 100
MOST_MESSAGE_BYTES = 4096
# What one connection may ask for: so many at once, and so many each second.
MOST_MESSAGES, MESSAGES_PER_S = 60, 10
COMMENT_EVERY_S = 15.0
# Small, so that whoever does not read is noticed, and costs little until then.
KERNEL_BUFFER_BYTES = 64 * 1024
GONE_AFTER_MS = 10_000
# The first byte of TCP_INFO: established.
OPEN = b"\x01"

sock = Sock()
blueprint = flask.Blueprint("live", __name__)


def create_live_app(settings: Settings | None = None) -> Flask:
    """The application that `plaudit live` serves (gunicorn calls it in its worker, after gevent has patched)."""
    settings = settings or Settings.from_env()
    connect(settings)
    app = new_flask(settings)
    app.config["SOCK_SERVER_OPTIONS"] = {"max_message_size": MOST_MESSAGE_BYTES}
    signer = Signer(issuer=settings.public_url, secret_key=secret_key(settings))
    services.install(app, LiveServices(settings, signer, hub=Hub()))
    app.register_error_handler(RemoteProtocolError, _answer_bad_handshake)
    # One connection may send many requests at once: the others have their turn between them.
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
    top = ma.fields.Integer(strict=True, validate=ma.validate.Range(1, MOST_TOP))


class UnknownOp(Invalid):
    code = "unknown_op"
    title = "op: subscribe, unsubscribe or ping"


class TooManyMessages(Forbidden):
    code = "rate_limited"
    title = f"At most {MESSAGES_PER_S} messages a second"


@blueprint.before_request
def admit() -> None:
    """Before the upgrade: afterwards nobody could be told why."""
    g.seq = 0
    match request.endpoint:
        case "live.scoreboard":
            g.guest = admission.to_scoreboard()
            top10 = board_for(g.guest.reader, {"scope": "users", "window": Window.ALL})
        case "live.stream":
            g.guest, g.seq = admission.by_ticket_or_resumed()
        case _:
            g.guest = admission.by_ticket()
    guest: Guest = g.guest
    logs.bind(tenant_id=guest.reader.tenant_id, user_id=guest.holder.id if guest.holder else None)
    if request.endpoint != "live.stream":
        if request.method != "GET":
            raise Malformed("A websocket is opened with GET")
        g.follower = _follower("socket")
        live_services().hub.join(g.follower)
        if request.endpoint == "live.scoreboard":
            g.follower.follow(top10, top=10)
        request.environ.pop("HTTP_SEC_WEBSOCKET_EXTENSIONS", None)  # compressing would cost memory for each connection
        raw = request.environ.get("gunicorn.socket")
        if raw is not None:
            request.environ["gunicorn.socket"] = connection.GuardedSocket(raw)


@blueprint.teardown_request
def part(_error: BaseException | None) -> None:
    """However it ended. (A stream goes on after its request, and sees to it itself.)"""
    follower = g.pop("follower", None)
    if follower is not None:
        live_services().hub.leave(follower)


@sock.route("/ws/leaderboards", bp=blueprint)
@public
def boards(ws: Server) -> None:
    """Follow boards: subscribe, unsubscribe, ping."""
    follower: Follower = g.follower
    connection.serve(ws, follower, _Conversation(follower).answer)


@sock.route("/ws/scoreboard/top10", bp=blueprint)
@public
def scoreboard(ws: Server) -> None:
    """The tenant's ten best users, at once and whenever they change."""
    follower: Follower = g.follower
    connection.serve(ws, follower, _Conversation(follower, ops={"ping"}).answer)


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
    word = admission.word_for(guest.holder) if guest.holder is not None else ""
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    response = Response(_events(follower, word), mimetype="text/event-stream", headers=headers)
    response.call_on_close(partial(hub.leave, follower))  # also of a HEAD, which never starts the generator
    return response


def _events(follower: Follower, word: str) -> Iterator[bytes]:
    spoke_at = time.monotonic()
    yield b"retry: 2000\n\n"
    while True:
        follower.wake.clear()
        if follower.close_code is not None:
            break
        for frame in follower.frames():
            follower.sending_since = spoke_at = time.monotonic()
            yield b"id: %d.%s\ndata: %s\n\n" % (follower.seq, word.encode(), frame)
            follower.sending_since = None
        if time.monotonic() - spoke_at >= COMMENT_EVERY_S:
            follower.sending_since = spoke_at = time.monotonic()
            yield b": still here\n\n"
            follower.sending_since = None
        follower.wake.wait(COMMENT_EVERY_S)
        time.sleep(connection.PACE_S)
    # A browser would come back by itself with a session that has ended: tell it why it should not.
    if follower.close_code == NO_LONGER_VALID:
        said = "What this stream was opened with does not count any more"
        yield b"data: %s\n\n" % follower.frame("error", code="invalid_ticket", detail=said)


class _Conversation:
    """What a client may say on a socket, and what it is answered."""

    def __init__(self, follower: Follower, ops: Iterable[str] = ("subscribe", "unsubscribe", "ping")) -> None:
        self._follower = follower
        self._ops = frozenset(ops)
        self._left, self._at = float(MOST_MESSAGES), time.monotonic()

    def answer(self, message: str | bytes) -> Iterator[bytes]:
        try:
            self._count()
            yield from self._obey(_read(message))
        except DomainError as error:
            fields = {"errors": error.errors} if error.errors else {}
            yield self._follower.frame("error", code=error.code, detail=error.detail, **fields)
            if isinstance(error, TooManyMessages):
                self._follower.end(TOO_MUCH)

    def _count(self) -> None:
        now = time.monotonic()
        self._left = min(float(MOST_MESSAGES), self._left + (now - self._at) * MESSAGES_PER_S)
        self._at = now
        if self._left < 1:
            raise TooManyMessages
        self._left -= 1

    def _obey(self, said: dict[str, Any]) -> Iterator[bytes]:
        op = said.get("op")
        if not isinstance(op, str) or op not in self._ops:
            raise UnknownOp.field("op", " or ".join(sorted(self._ops)))
        if op == "ping":
            yield self._follower.frame("pong", timestamp=utcnow())
            return
        wanted = load(FollowIn(), said)
        board = board_for(self._follower.reader, wanted)
        if op == "subscribe":
            try:
                self._follower.follow(board, wanted.get("top"))
            except (DBAPIError, PoolTimeoutError):
                self._follower.unfollow(board)
                raise Unavailable("The board's version cannot be read at the moment: try again") from None
        else:
            self._follower.unfollow(board)


@dataclass(eq=False)
class _Scoreboard(Follower):
    """Says only the rows, and only when they changed; and which of the places did."""

    greets: bool = False

    def top_frames(self, followed: Followed, top: Top) -> Iterable[bytes]:
        before = {row["rank"]: row for row in followed.shown or []}
        now = {row["rank"]: row for row in top.items}
        changed = sorted(rank for rank in before.keys() | now.keys() if before.get(rank) != now.get(rank))
        if changed or followed.shown is None:
            told = {"items": top.body, "changed_positions": changed, "timestamp": utcnow()}
            yield self.frame("top", topic=followed.board.topic, version=top.version, **told)


def _follower(kind: str, *, seq: int = 0) -> Follower:
    guest: Guest = g.guest
    raw: socket.socket | None = request.environ.get("gunicorn.socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_AFTER_MS)

    def cut() -> None:
        if raw is not None:
            # By another handle: gevent would break off a wait on this one with an error of its own, and a traceback.
            with contextlib.closing(socket.socket(fileno=os.dup(raw.fileno()))) as same:
                same.shutdown(socket.SHUT_RDWR)

    def is_gone() -> bool:
        """A stream is never read from, so nobody but the kernel knows that its client has closed it."""
        return raw is not None and kind == "stream" and raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != OPEN

    def still_counts(follower: Follower) -> bool:
        """What they may not read any more they no longer follow."""
        reader = guest.reader_now()
        if reader is None:
            return False
        follower.reader = reader
        if reader.public_only and guest.holder is not None:
            for followed in list(follower.follows.values()):
                board = followed.board
                try:
                    board_for(reader, {"scope": board.scope, "window": board.window, "metric": board.metric.name})
                except Forbidden:
                    follower.unfollow(board)
        return True

    made = _Scoreboard if request.endpoint == "live.scoreboard" else Follower
    who = (guest.reader, guest.holder, still_counts)
    return made(live_services().hub, kind, *who, cut, is_gone, address=caller_network(), seq=seq)


def _board_named(follower: Follower, topic: str) -> Board:
    scope, _, rest = topic.rpartition(":")
    scope, _, window = scope.rpartition(":")
    try:
        return board_for(follower.reader, load(FollowIn(), {"scope": scope, "window": window, "metric": rest}))
    except Invalid as error:
        raise Invalid.field("topic", error.detail) from None


def _read(message: str | bytes) -> dict[str, Any]:
    try:
        said = orjson.loads(message)
    except ValueError:
        raise Malformed("Send JSON") from None
    if not isinstance(said, dict):
        raise Malformed("Send a JSON object")
    return said


def _answer_bad_handshake(_error: RemoteProtocolError) -> Response:
    if request.headers.get("Sec-WebSocket-Version") != "13":
        return errors.problem(
            426,
            code="upgrade_required",
            title="Another version of the websocket protocol is needed",
            detail="Version 13 is spoken here",
            headers={"Sec-WebSocket-Version": "13"},
        )
    return errors.answer_domain_error(Malformed("This is not a websocket handshake that can be answered"))
