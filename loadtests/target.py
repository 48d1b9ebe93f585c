"""The service that is measured: `plaudit up` with its workers on a copy of a data set, and tokens for it."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
from redis import Redis
from sqlalchemy import select

from analytics.boards.redis_store import is_complete, ready_key
from app.run.data_folder import read_secrets, read_state
from loadtests import dataset, rows
from loadtests.dataset import DataSet, TenantSize
from loadtests.service import NotInTime, Service, running_service, wait_until
from tenants import credentials, db, sessions
from tenants.credentials import Scope
from tenants.redis import make_client
from tenants.signing import Signer
from tenants.users import User

# Boards of 300,000 pages are rebuilt after the start, since Redis keeps nothing.
BOARDS_WITHIN_S = 900
IDLE_WITHIN_S = 120
# Tokens are replaced when they are older: a user's expires after 900 s.
FRESH_S = 500.0
SIGNED_IN_USERS = 1_000


@dataclass
class Target:
    service: Service
    data: DataSet
    # How often anything was measured: what must differ between measurements follows from it.
    measurement: int = 0
    _tokens: dict[str, tuple[float, list[str]]] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return int(self.service.url.rsplit(":", 1)[1])

    @property
    def tenant(self) -> TenantSize:
        """The tenant that most operations are measured on."""
        return self.data.tenants[0]

    @property
    def addresses(self) -> dict[str, str]:
        state = read_state(self.service.data_dir)
        assert state is not None
        addresses: dict[str, str] = state["addresses"]
        return addresses

    def redis(self) -> "Redis":
        return make_client(self.addresses["redis_url"], timeout_s=5)

    def owner(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.addresses["database_url"], autocommit=True)

    def wait_until_idle(self, *, within_s: float = IDLE_WITHIN_S) -> float:
        """Wait until the workers have projected everything; returns the seconds that it took, or `within_s`."""
        began = time.monotonic()
        with self.owner() as owner, contextlib.suppress(NotInTime):
            wait_until(lambda: owner.execute(rows.IS_IDLE).fetchone() == (True,), within_s=within_s)
        return time.monotonic() - began

    def client_token(self, tenant_id: str | None = None) -> str:
        """A token of the tenant's client, with all scopes."""
        return self.client_tokens([tenant_id or self.tenant.id])[0]

    def client_tokens(self, tenant_ids: list[str]) -> list[str]:
        wanted = {f"client {tenant_id}": partial(_sign, tenant_id) for tenant_id in tenant_ids}
        return [tokens[0] for tokens in self._fresh(wanted)]

    def user_tokens(self) -> list[str]:
        """Tokens of many users who have just signed in."""
        return self._fresh({f"users {self.tenant.id}": partial(_sign_in, self.tenant.id)})[0]

    def _fresh(self, wanted: Mapping[str, Callable[[Signer], list[str]]]) -> list[list[str]]:
        now = time.monotonic()
        old = [name for name in wanted if now - self._tokens.get(name, (-FRESH_S, []))[0] >= FRESH_S]
        if old:
            with self._signer() as signer:
                self._tokens |= {name: (now, wanted[name](signer)) for name in old}
        return [self._tokens[name][1] for name in wanted]

    @contextmanager
    def _signer(self) -> Iterator[Signer]:
        """As the service signs. Connections are closed at the end: a generator may fork this process."""
        addresses = self.addresses
        db.configure(service_url=addresses["service_database_url"], owner_url=addresses["database_url"], pool_size=2)
        try:
            yield Signer(issuer=self.service.url, secret_key=read_secrets(self.service.data_dir)["secret_key"])
        finally:
            db.dispose()


def _sign(tenant_id: str, signer: Signer) -> list[str]:
    with db.tenant_tx(tenant_id) as tx:
        client = credentials.list_clients(tx, limit=1)[0]
    return [credentials.client_token(client, " ".join(Scope), signer=signer, now=db.utcnow())]


def _sign_in(tenant_id: str, signer: Signer) -> list[str]:
    signer.load()
    with db.tenant_tx(tenant_id) as tx:
        users = tx.scalars(select(User).order_by(User.external_id).limit(SIGNED_IN_USERS)).all()
        started = [sessions.start(tx, user, signer=signer, ip=None, agent="bench", now=db.utcnow()) for user in users]
        return [tokens.access_token for tokens in started]


@contextmanager
def running_target(data: DataSet, *options: str) -> Iterator[Target]:
    """`plaudit up` on a copy of the data set, once its boards are complete."""
    with dataset.copy_of(data) as data_dir, running_service(data_dir, *options) as service:
        target = Target(service, data)
        with target.redis() as redis:
            keys = [ready_key(tenant.id) for tenant in data.tenants]
            wait_until(lambda: all(is_complete(redis.get(key)) for key in keys), within_s=BOARDS_WITHIN_S, every_s=0.2)
        target.wait_until_idle(within_s=BOARDS_WITHIN_S)
        yield target
