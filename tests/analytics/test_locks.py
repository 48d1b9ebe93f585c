"""One writer of a tenant's boards."""

import pytest
from sqlalchemy import text

from analytics.locks import Busy, lock_boards, try_lock_boards
from tenants.db import Tx, tenant_tx


def wait_briefly(tx: Tx) -> None:
    tx.execute(text("SET LOCAL lock_timeout = 10"))


def test_a_second_writer_is_refused_until_the_first_has_committed(tenant: str, other_tenant: str) -> None:
    with tenant_tx(tenant, separate=True) as first:
        try_lock_boards(first, tenant)
        try_lock_boards(first, tenant)
        with tenant_tx(tenant, separate=True) as second:
            try_lock_boards(second, other_tenant)
            with pytest.raises(Busy):
                try_lock_boards(second, tenant)
    with tenant_tx(tenant) as tx:
        try_lock_boards(tx, tenant)


@pytest.mark.parametrize("shared", [False, True])
def test_who_waits_too_long_is_refused_as_busy(tenant: str, shared: bool) -> None:
    with tenant_tx(tenant, separate=True) as first:
        lock_boards(first, tenant)
        with tenant_tx(tenant, separate=True) as second:
            wait_briefly(second)
            with pytest.raises(Busy):
                lock_boards(second, tenant, shared=shared)


def test_readers_share_the_lock_and_keep_writers_out(tenant: str) -> None:
    with tenant_tx(tenant, separate=True) as first, tenant_tx(tenant, separate=True) as second:
        for tx in (first, second):
            wait_briefly(tx)
            lock_boards(tx, tenant, shared=True)
        with tenant_tx(tenant, separate=True) as writer, pytest.raises(Busy):
            try_lock_boards(writer, tenant)
