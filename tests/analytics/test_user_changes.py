"""Changing a user: what follows for boards and sessions."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask

from analytics import outbox
from analytics.boards import checking, projection
from analytics.outbox import Kind
from analytics.user_changes import change_user
from app.http.services import services_of
from tenants import sessions, users
from tenants.db import tenant_tx, utcnow
from tests.people import Caller, let_suspension_end
from workers import jobs


@pytest.mark.parametrize(
    ("changes", "is_stale"),
    [
        ({"segment": "north"}, True),
        ({"segments": ["north", "pro"]}, True),
        ({"suspended": True}, True),
        ({"suspended_until": None}, True),
        ({"display_name": "Ada"}, True),
        ({"avatar_url": "https://pictures.example/ada.png"}, True),
        ({"bio": "new"}, False),
        ({"role": "admin"}, False),
    ],
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


def test_after_the_end_of_a_suspension_a_user_is_on_the_boards_again(
    tenant: str, player: Caller, admin: Caller
) -> None:
    claim = {"actionId": str(uuid4()), "actionType": "post", "timestamp": utcnow().isoformat()}
    assert player("POST", "/api/v1/scores/update", json=claim).status_code == 200
    until = (utcnow() + timedelta(hours=1)).isoformat()
    admin("PATCH", f"/api/v1/users/{player.id}", json={"suspended": True, "suspended_until": until})

    def on_board() -> list[str]:
        projection.project_all(tenant, now=utcnow)
        assert checking.check(tenant, now=utcnow()).differences == []
        answer = admin("GET", f"/api/v1/leaderboards?scope=users&window=all&limit={next(limits)}").get_json()
        return [row["user"]["id"] for row in answer["items"]]

    limits = iter(range(10, 20))  # not the answer that was kept
    assert on_board() == []
    let_suspension_end(tenant, player.id)
    assert on_board() == [], "what boards show, and check expects, changes by a write"
    jobs.end_suspensions()
    jobs.end_suspensions()
    assert on_board() == [player.id]
