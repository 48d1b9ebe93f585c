"""Changing a user: what follows for boards and sessions."""

from typing import Any

import pytest
from flask import Flask

from analytics import outbox
from analytics.outbox import Kind
from analytics.user_changes import change_user
from app.http.services import services_of
from tenants import sessions, users
from tenants.db import tenant_tx, utcnow


@pytest.mark.parametrize(
    ("changes", "is_stale"),
    [({"segment": "north"}, True), ({"suspended": True}, True), ({"bio": "new"}, False), ({"role": "admin"}, False)],
)
def test_only_what_boards_show_makes_a_user_stale(tenant: str, changes: dict[str, Any], is_stale: bool) -> None:
    with tenant_tx(tenant) as tx:
        user = users.get(tx, users.ensure_external(tx, "ada", now=utcnow()))
        changed = change_user(tx, user, changes, now=utcnow())
        assert (changed.id, changed.updated_at >= changed.created_at) == (user.id, True)
        assert [row.member for row in tx.run(*outbox.oldest(tx.tenant, Kind.USER, limit=9))] == [
            str(user.id)
        ] * is_stale


def test_a_suspension_ends_sessions_after_the_commit(app: Flask, tenant: str) -> None:
    signer = services_of(app).signer
    signer.load()
    with tenant_tx(tenant) as tx:
        user = users.register(tx, username="ada", email=None, password_hash="x", now=utcnow())
        session = str(sessions.start(tx, user, signer=signer, ip=None, agent=None, now=utcnow()).session_id)
    assert sessions.rights_of(tenant, session) is not None
    with tenant_tx(tenant) as tx:
        change_user(tx, users.get(tx, user.id), {"suspended": True}, now=utcnow())
    assert sessions.rights_of(tenant, session) is None
