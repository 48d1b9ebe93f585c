"""P3 and P4: what the projection tells Redis in chunks."""

from typing import Any

import pytest
from sqlalchemy import text

from analytics.boards import changes, checking, names, projection
from tenants.db import tenant_tx, utcnow
from tenants.redis import RedisUnavailable
from tests.analytics.conftest import make_page
from tests.people import Caller


def test_after_a_chunk_that_failed_nothing_more_is_told_and_the_next_run_heals(
    sender: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        make_page(sender, name)
    projection.run_all(tenant, now=utcnow)
    for name in "abc":
        sender("POST", f"/api/v1/pages/{name}/views")
    told: list[changes.Changes] = []

    def fail(_client: Any, changes: changes.Changes, _versions: Any) -> list[names.Board]:
        told.append(changes)
        raise RedisUnavailable

    monkeypatch.setattr(projection, "MEMBERS_A_CHUNK", 1)
    with monkeypatch.context() as broken:
        broken.setattr(names, "write", fail)
        assert projection.run(tenant, now=utcnow()).in_redis is False
    assert len(told) == 1, "a later version would be without the chunk that failed"
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM projecting")) == 3, "the intents stay"
    projection.run_all(tenant, now=utcnow)
    report = checking.check(tenant, now=utcnow())
    assert (report.differences, report.due) == ([], 0)
