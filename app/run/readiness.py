"""Whether the API and the sockets that `plaudit up` started are ready, and what is missing if they are not."""

import json
import time
from collections.abc import Mapping
from http.client import HTTPException
from math import inf
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

# However often the supervisor looks, which is at every line of its children: a probe that is answered costs the service
# a transaction, and may be the reason for such a line.
PROBE_EVERY_S = 0.25
# A process without its database says so within this time.
TIMEOUT_S = 3.0
OK, UNKNOWN = "ok", "unknown"


class Readiness:
    """Call `is_ready` as often as you like; `problems` says what the last answer lacked."""

    def __init__(self, *urls: str, headers: Mapping[str, str]) -> None:
        self._requests = [Request(url, headers=dict(headers)) for url in urls]  # noqa: S310  our own
        self._opener = build_opener(ProxyHandler({}))  # they are on this machine
        self._not_before = -inf
        self.problems = ""

    def is_ready(self) -> bool:
        if time.monotonic() < self._not_before:
            return False
        return all(self._answers_ok(request) for request in self._requests)

    def _answers_ok(self, request: Request) -> bool:
        try:
            status, body = self._answer(request)
        except TimeoutError:
            self.problems = f"no answer within {TIMEOUT_S:.0f} s"
        except (OSError, HTTPException):  # nobody listens yet, or not any more: asking costs nothing
            self.problems = ""
            return False
        else:
            if status == 200:
                return True
            self.problems = problems_in(body)
        self._not_before = time.monotonic() + PROBE_EVERY_S
        return False

    def _answer(self, request: Request) -> tuple[int, bytes]:
        try:
            answer = self._opener.open(request, timeout=TIMEOUT_S)
        except HTTPError as refusal:
            answer = refusal
        with answer:
            return answer.status, answer.read()


def problems_in(body: bytes) -> str:
    """The checks of an answer of /health/ready that are not ok. One is unknown because another one failed."""
    try:
        checks = dict(json.loads(body)["checks"])
    except (ValueError, KeyError, TypeError):
        return ""
    return "; ".join(f"{name}: {said}" for name, said in checks.items() if said not in {OK, UNKNOWN})
