"""An instance of Plaudit over HTTP, as a client of one of its tenants."""

import threading
import time
from typing import Any
from urllib.parse import urlsplit

import requests

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
TIMEOUT_S = 15
# A call that is refused because the tenant is busy is sent again: so often, and after at most so long.
MAX_ATTEMPTS = 6
MAX_PAUSE_S = 5.0


class Refused(Exception):
    """Why a load test cannot run, in one line."""


def checked_host(host: str) -> str:
    """The origin of an instance. Beyond this machine only with TLS, since the client's secret is sent to it."""
    try:
        parts = urlsplit(host)
        is_origin = parts.scheme in {"http", "https"} and parts.hostname and parts.path in {"", "/"}
        if not is_origin or parts.username or parts.query or parts.fragment or parts.port == 0:
            raise ValueError  # noqa: TRY301  the same answer as for a port that is none
    except ValueError:
        raise Refused("HOST must be an origin such as https://plaudit.example") from None
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise Refused("HOST must start with https:// unless it is this machine: the client's secret is sent to it")
    return host.rstrip("/")


class Instance:
    def __init__(self, host: str, client_id: str, client_secret: str) -> None:
        self.host = host
        self.client_id, self.client_secret = client_id, client_secret
        self._token: str | None = None
        self._of_thread = threading.local()

    def sign_in(self) -> None:
        auth = (self.client_id, self.client_secret)
        try:
            answer = requests.post(
                f"{self.host}/oauth/token", data={"grant_type": "client_credentials"}, auth=auth, timeout=TIMEOUT_S
            )
        except requests.RequestException as error:
            raise Refused(f"{self.host} cannot be reached ({type(error).__name__})") from None
        if answer.status_code == 401:
            raise Refused(f"{self.host} does not know this CLIENT_ID with this CLIENT_SECRET")
        try:
            self._token = str(answer.json()["access_token"])
        except (ValueError, KeyError, TypeError):
            raise Refused(f"{self.host} does not answer as Plaudit does ({answer.status_code})") from None

    def call(self, method: str, path: str, *, expected: tuple[int, ...] = (200, 201, 202, 204), **options: Any) -> Any:
        """The decoded answer. What is refused for the moment is tried again; another status is an error."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            answer = self.send(method, path, **options)
            if answer.status_code in expected:
                return answer.json() if answer.content else None
            if attempt == MAX_ATTEMPTS or answer.status_code not in {401, 429, 503}:
                break
            if answer.status_code == 401:
                self.sign_in()
            else:
                time.sleep(min(float(answer.headers.get("Retry-After", 1)), MAX_PAUSE_S))
        raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:200]}")

    def send(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self._token}"}
        return self._session().request(method, self.host + path, headers=headers, timeout=TIMEOUT_S, **options)

    def _session(self) -> requests.Session:
        """One for each thread, so that connections are used again."""
        if not hasattr(self._of_thread, "session"):
            self._of_thread.session = requests.Session()
        session: requests.Session = self._of_thread.session
        return session
