"""P3 and P4: what the projection tells Redis in chunks."""

from typing import Any

import pytest
from sqlalchemy import text

from analytics.boards import checking, projection, redis_store
from analytics.boards.board_writes import BoardWrites
from analytics.boards.names import Board
from tenants.db import tenant_tx, utcnow
from tenants.redis import RedisUnavailable
from tests.analytics.conftest import make_page
from tests.people import Caller


def test_after_a_chunk_that_failed_nothing_more_is_written_and_the_next_run_heals(
    sender: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        make_page(sender, name)
    projection.project_all(tenant, now=utcnow)
    for name in "abc":
        sender("POST", f"/api/v1/pages/{name}/views")
    written: list[BoardWrites] = []

    def fail(_client: Any, writes: BoardWrites, _versions: Any) -> list[Board]:
        written.append(writes)
        raise RedisUnavailable

    monkeypatch.setattr(projection, "MAX_MEMBERS_PER_CHUNK", 1)
    with monkeypatch.context() as broken:
        broken.setattr(redis_store, "write", fail)
        assert projection.project_step(tenant, now=utcnow()).in_redis is False
    assert len(written) == 1, "a later version would be without the chunk that failed"
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM projecting")) == 3, "the intents stay"
    projection.project_all(tenant, now=utcnow)
    report = checking.check(tenant, now=utcnow())
    assert (report.differences, report.due) == ([], 0)
