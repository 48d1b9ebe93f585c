"""A flood of logins takes no memory that stays."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import psutil
import pytest
import requests

from app.run.data_folder import Addresses
from app.run.ports import reserve_port
from app.settings import Settings
from tenants import passwords
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tests.people import PASSWORD
from tests.secrets_seen import LOG_FOLDER
from tests.service import PLAUDIT, ROOT, eventually

# What the hashes of a process need, and its buffers, connections and threads' stacks.
MAX_GROWTH_MB = 20 * passwords.MAX_RUNNING + 60


@pytest.mark.long
def test_a_web_process_stays_small_over_a_thousand_logins(
    settings: Settings, addresses: Addresses, tenant: str, tmp_path: Path
) -> None:
    """From as many networks, and at a tenant that allows it; the names are unknown, which costs as much."""
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"limits": {"logins_per_minute": 10_000}}, now=utcnow())
    port = reserve_port()
    env = os.environ | {
        "DATABASE_URL": addresses.database_url,
        "PLAUDIT_SERVICE_DATABASE_URL": addresses.service_database_url,
        "REDIS_URL": addresses.redis_url,
        "PLAUDIT_SECRET_KEY": settings.secret_key or "",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PLAUDIT_WEB_PROCESSES": "1",
        "PLAUDIT_PROXY_HOPS": "1",
    }
    url = f"http://127.0.0.1:{port}"
    with (LOG_FOLDER / "logins.log").open("ab") as log:
        parent = psutil.Popen([*PLAUDIT, "web", "--port", str(port)], stdout=log, stderr=log, cwd=ROOT, env=env)
    try:
        eventually(lambda: requests.get(f"{url}/health/live", timeout=5).ok)
        (web,) = parent.children()
        before = web.memory_info().rss
        with ThreadPoolExecutor(16) as clients:

            def log_in(number: int) -> None:
                headers = {"X-Forwarded-For": f"10.{number // 250}.{number % 250}.1"}
                for attempt in count():
                    body = {"tenant": tenant, "username": f"user_{number}_{attempt}", "password": PASSWORD}
                    answer = requests.post(f"{url}/api/v1/auth/login", json=body, headers=headers, timeout=60)
                    if answer.status_code != 503:  # too many at once
                        assert answer.status_code == 401, answer.text
                        return
                    time.sleep(0.2)

            list(clients.map(log_in, range(1000)))
        grown_mb = (web.memory_info().rss - before) / 2**20
        assert grown_mb < MAX_GROWTH_MB, f"grown by {grown_mb:.0f} MB"
    finally:
        parent.terminate()
        parent.wait(60)
