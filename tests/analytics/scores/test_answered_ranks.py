"""The rank in a score's answer: the board's order at its commit, whatever the board knows by then."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient

from analytics import user_changes
from analytics.boards import projection, reading
from analytics.boards.names import Board
from analytics.boards.reading import Around
from analytics.ingest.group_commit import GroupCommit
from analytics.ingest.writes import WriteRequest
from analytics.metrics import POINTS
from analytics.scores import payments
from analytics.scores.actions import ActionClaim, Payment, Verification
from analytics.windows import Window
from tenants import settings as tenant_settings
from tenants import users
from tenants.db import tenant_tx, utcnow
from tests.analytics.scores.conftest import UPDATE, claim_of
from tests.conftest import redis_unavailable
from tests.people import Caller, user_of

pytestmark = pytest.mark.usefixtures("admin")  # and the catalog


@pytest.fixture
def people(tenant: str) -> list[UUID]:
    with tenant_tx(tenant) as tx:
        return [users.ensure_external(tx, f"u{number}", now=utcnow()) for number in range(50)]


def update(tenant: str, user_id: UUID, commits: GroupCommit, action: str = "post") -> Payment:
    """As the route does it."""
    claim = ActionClaim(user_id, action, f"action:{user_id}:{uuid4()}", Verification.SESSION)
    request = WriteRequest(tenant, [], utcnow(), claims=[claim], settings=tenant_settings.recent(tenant))
    commits.write(request)
    (paid,) = request.payments
    assert isinstance(paid, Payment), paid
    return paid


def rank_of(tenant: str, user_id: UUID) -> int:
    """As `/leaderboards/rank` reads it."""
    board = Board(tenant, "users", Window.ALL, POINTS)
    (row,) = reading.read(board, Around(str(user_id), 0), now=utcnow()).rows
    return row.rank


def settled_rank(tenant: str, user_id: UUID) -> int:
    projection.project_all(tenant, now=utcnow)
    return rank_of(tenant, user_id)


def test_after_fifty_equal_updates_at_once_every_rank_is_another_and_the_next_answers_are_right(
    tenant: str, people: list[UUID]
) -> None:
    commits = GroupCommit()
    with ThreadPoolExecutor(50) as pool:
        paid = list(pool.map(lambda person: update(tenant, person, commits), people))
    assert {one.score for one in paid} == {10}
    projection.project_all(tenant, now=utcnow)
    assert sorted(rank_of(tenant, person) for person in people) == list(range(1, 51))
    for person in (people[0], people[17], people[0], people[49]):
        assert update(tenant, person, commits).rank == settled_rank(tenant, person)


@pytest.mark.parametrize("redis", ["up", "away"])
def test_answers_are_right_while_the_board_is_behind(tenant: str, people: list[UUID], redis: str) -> None:
    """Users pass each other, tie, leave the board, and change twice, and none of it is projected."""
    commits, (ada, bob, eve, zed) = GroupCommit(), people[:4]
    for person in (ada, bob, eve):
        update(tenant, person, commits)
    projection.project_all(tenant, now=utcnow)  # ada, bob, eve: 10 each
    with redis_unavailable() if redis == "away" else nullcontext():
        assert update(tenant, zed, commits).rank == 4, "the last to reach what all have"
        assert update(tenant, eve, commits).rank == 1
        assert update(tenant, bob, commits).rank == 2
        assert update(tenant, eve, commits, "answer").rank == 1
        assert update(tenant, ada, commits).rank == 3
        with tenant_tx(tenant) as tx:
            user_changes.change_user(tx, users.get(tx, eve), {"suspended": True}, now=utcnow())
        last = update(tenant, zed, commits).rank
        assert last == 3, "after bob and ada, without eve"
        assert settled_rank(tenant, zed) == last
        assert [settled_rank(tenant, person) for person in (bob, ada)] == [1, 2]


def test_claims_of_one_commit_are_ranked_among_each_other(tenant: str, people: list[UUID]) -> None:
    with tenant_tx(tenant) as tx:
        claims = [
            ActionClaim(person, "post", f"action:{person}:{uuid4()}", Verification.SESSION) for person in people[:9]
        ]
        claims.append(ActionClaim(people[4], "post", f"action:{uuid4()}", Verification.SESSION))
        paid = payments.pay_all(tx, claims, tenant_settings.read(tx)[0], room=0, now=utcnow()).payments
    claimants = [*people[:9], people[4]]
    answered = [(person, one.rank) for person, one in zip(claimants, paid, strict=True) if isinstance(one, Payment)]
    assert sorted(rank or 0 for _, rank in answered[:9]) == list(range(1, 10))
    projection.project_all(tenant, now=utcnow)
    assert answered == [(person, rank_of(tenant, person)) for person in claimants]


def test_the_answer_over_http_is_what_the_board_then_says(client: FlaskClient, player: Caller, tenant: str) -> None:
    other = user_of(client, tenant)
    for number, caller in enumerate((player, other, player, other, other), 1):
        answered = caller("POST", UPDATE, json=claim_of()).get_json()["rank"]
        projection.project_all(tenant, now=utcnow)
        # By another address each time: an answer may be kept for a second.
        path = f"/api/v1/leaderboards/rank?scope=users&window=all&member=me&around={number}"
        assert caller("GET", path).get_json()["rank"] == answered
