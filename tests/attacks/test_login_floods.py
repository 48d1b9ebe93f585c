"""A flood of wrong logins, each from another address, keeps out only new devices at the tenant that it attacks."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psutil
import pytest
import requests
from flask.testing import FlaskClient

from app.run.data_folder import Addresses
from app.run.ports import reserve_port
from app.settings import Settings
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tests.people import PASSWORD, user_of
from tests.secrets_seen import LOG_FOLDER
from tests.service import PLAUDIT, ROOT, eventually

CONNECTIONS = 40
GUESS = "guess-guess-guess"
AGENT = "tests"  # as the sessions of `user_of` have it
KNOWN_ADDRESS = "127.0.0.1"


class Flood:
    """Wrong logins on as many connections, each from another address, for another name of the same tenant."""

    def __init__(self, url: str, tenant: str) -> None:
        self.answers: Counter[int] = Counter()
        self.retry_after: set[str | None] = set()
        self._url, self._tenant = url, tenant
        self._numbers, self._end = count(), threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            try:
                for _ in range(CONNECTIONS):
                    pool.submit(self._guess)
                yield
            finally:
                self._end.set()

    def _guess(self) -> None:
        with requests.Session() as session:
            while not self._end.is_set():
                number = next(self._numbers)
                address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
                answer = log_in(self._url, self._tenant, f"user_{number}", address, password=GUESS, by=session)
                self.answers[answer.status_code] += 1
                if answer.status_code == 429:
                    self.retry_after.add(answer.headers.get("Retry-After"))


def log_in(
    url: str,
    tenant: str,
    username: str,
    address: str,
    *,
    password: str = PASSWORD,
    by: requests.Session | None = None,
) -> requests.Response:
    body = {"tenant": tenant, "username": username, "password": password}
    headers = {"X-Forwarded-For": address, "User-Agent": AGENT}
    return (by or requests).post(f"{url}/api/v1/auth/login", json=body, headers=headers, timeout=60)


@pytest.fixture
def web(settings: Settings, addresses: Addresses, tmp_path: Path) -> Iterator[str]:
    """The address of a single web process behind a proxy."""
    port = reserve_port()
    env = os.environ | {
        "DATABASE_URL": addresses.database_url,
        "PLAUDIT_SERVICE_DATABASE_URL": addresses.service_database_url,
        "REDIS_URL": addresses.redis_url,
        "PLAUDIT_SECRET_KEY": settings.secret_key or "",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PLAUDIT_WEB_PROCESSES": "1",
        "PLAUDIT_PROXY_HOPS": "1",
        # More than the connections of the flood: what is refused is refused by the queues of passwords.
        "PLAUDIT_WEB_THREADS": "64",
    }
    url = f"http://127.0.0.1:{port}"
    with (LOG_FOLDER / "floods.log").open("ab") as log:
        process = psutil.Popen([*PLAUDIT, "web", "--port", str(port)], stdout=log, stderr=log, cwd=ROOT, env=env)
    try:
        eventually(lambda: requests.get(f"{url}/health/live", timeout=5).ok)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def allow(tenant: str, logins_per_minute: int) -> None:
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"limits": {"logins_per_minute": logins_per_minute}}, now=utcnow())


@pytest.mark.parametrize("exists", [True, False], ids=["at a tenant", "at no tenant"])
def test_wrong_logins_from_everywhere_keep_out_no_other_tenant_and_no_known_device(
    client: FlaskClient, tenant: str, other_tenant: str, web: str, exists: bool
) -> None:
    user_of(client, tenant, username="victim")
    user_of(client, other_tenant, username="neighbour")
    allow(tenant, 10_000)
    flood = Flood(web, tenant if exists else "nobody-here")
    with flood.running():
        eventually(lambda: flood.answers[401] >= 20)
        neighbours = [log_in(web, other_tenant, "neighbour", f"172.16.0.{n}") for n in range(12)]
        known = [log_in(web, tenant, "victim", KNOWN_ADDRESS) for _ in range(4)]
        allow(tenant, 10)
        eventually(lambda: flood.answers[429] >= 20, within_s=120)
        neighbours += [log_in(web, other_tenant, "neighbour", f"172.16.1.{n}") for n in range(4)]
        known += [log_in(web, tenant, "victim", KNOWN_ADDRESS) for _ in range(4)]
        stranger = log_in(web, tenant, "victim", "192.0.2.1")
    assert [answer.status_code for answer in neighbours] == [200] * 16
    assert [answer.status_code for answer in known] == [200] * 8, "a device that the user has used before"
    assert stranger.status_code == (429 if exists else 200), "another device, at the tenant that is attacked"
    assert flood.answers.keys() <= {401, 429, 503}, flood.answers
    assert None not in flood.retry_after
    assert all(1 <= int(seconds or 0) <= 60 for seconds in flood.retry_after)
