"""`GET /metrics` on machines without a `web` process (`PLAUDIT_METRICS_PORT`), for all processes of the machine.

Every worker and cron process tries to listen on the port, of which one succeeds. When that one ends, another does so
within `RETRY_S`. For operators only: a few requests at once are answered, and slow clients are given up.
"""

import contextlib
import errno
import socket
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from io import BufferedReader, RawIOBase
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any

import orjson
import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from analytics.scraping import may_scrape, metrics_text
from app.settings import Settings

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

RETRY_S = 1.0
# Within which a request must have arrived, and its answer be taken.
TIMEOUT_S = 2.0
# At once; whoever comes then waits for a moment, and is given up.
MAX_CLIENTS = 32
MAX_HEALTH_BYTES = 1000

log = structlog.get_logger()


def start(settings: Settings) -> None:
    """Serve the metrics whenever no other process does, in a thread, until this process ends. Without a port: never."""
    if settings.metrics_port is not None:
        try:
            server = listen(settings)
        except OSError as error:
            raise SystemExit(
                f"Cannot listen on PLAUDIT_METRICS_PORT {settings.metrics_port}: {error.strerror}"
            ) from None
        threading.Thread(target=_run, args=(settings, server), name="metrics", daemon=True).start()


def _run(settings: Settings, server: "MetricsServer | None") -> None:
    if server is None and not is_served_by_us(settings):
        log.warning(
            "another program holds PLAUDIT_METRICS_PORT: choose another port for the metrics of this machine",
            action="metrics.port_taken",
            data={"port": settings.metrics_port},
        )
    while server is None:
        time.sleep(RETRY_S)
        with contextlib.suppress(OSError):  # such as too many open files: the next attempt may succeed
            server = listen(settings)
    data = {"port": settings.metrics_port}
    log.info("this process serves the metrics of its machine", action="metrics.served", data=data)
    server.serve_forever()


def listen(settings: Settings) -> "MetricsServer | None":
    """None: another process does."""
    try:
        return MetricsServer(settings)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None


def is_served_by_us(settings: Settings) -> bool:
    """Whether a process of ours answers at the port, or one that has just ended may have."""
    connection = HTTPConnection(settings.host, settings.metrics_port, timeout=2 * TIMEOUT_S)
    try:
        connection.request("GET", "/health/live")
        answer = orjson.loads(connection.getresponse().read(MAX_HEALTH_BYTES))
        return isinstance(answer, dict) and answer.get("status") == "ok"
    except ConnectionRefusedError:
        return True
    except (OSError, HTTPException, ValueError):  # no answer, or none that is ours
        return False
    finally:
        connection.close()


class MetricsServer(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 2 * MAX_CLIENTS

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scraping = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CLIENTS)
        self.address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        super().__init__((settings.host, settings.metrics_port or 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._places.acquire()  # within TIMEOUT_S a client has its answer or is given up
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, *_: object) -> None:
        """In the handler of an exception. Whatever it is, the next scrape must be answered."""
        log.warning("a scrape failed", action="metrics.failed", data={"error": type(sys.exception()).__name__})


class _Request(RawIOBase):
    """What a client sends, until `TIMEOUT_S` after its beginning: however many reads it takes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = time.monotonic() + TIMEOUT_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "plaudit"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = BufferedReader(_Request(self.connection))

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/health/live":
                self._answer(200, "application/json", orjson.dumps({"status": "ok", "checks": {}}))
            case "/metrics" if self._is_operator():
                with self.server.scraping:  # it reads the database, for which a process has few connections
                    text = metrics_text(self.server.settings.metrics_dir)
                self._answer(200, CONTENT_TYPE_LATEST, text)
            case "/metrics":
                self._answer(
                    403, "text/plain", b"Send PLAUDIT_METRICS_TOKEN, which must be set here, as a bearer token\n"
                )
            case _:
                self._answer(404, "text/plain", b"There is nothing at this address\n")

    def _is_operator(self) -> bool:
        settings = self.server.settings
        return may_scrape(
            token=settings.metrics_token,
            authorization=self.headers.get("Authorization", ""),
            address=str(self.client_address[0]),
            is_behind_proxy=settings.may_be_behind_proxy or "X-Forwarded-For" in self.headers,
        )

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.connection.settimeout(TIMEOUT_S)  # of each write as a whole
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Scrapes are not logged."""
