"""Quests over HTTP: the whole way, every refusal with its code, and in which order they are judged."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from analytics.boards import projection
from analytics.quests.states import Status
from app.api import quests
from tenants.db import utcnow
from tenants.users import Role
from tests.analytics.quests.questing import OFFER, WORK, World
from tests.people import Caller, client_of, user_of

QUESTS = "/api/v1/quests"


@pytest.fixture
def creator(client: FlaskClient, tenant: str) -> Caller:
    return user_of(client, tenant)


@pytest.fixture
def performer(client: FlaskClient, tenant: str) -> Caller:
    return user_of(client, tenant, sees_private=False)


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    return user_of(client, tenant, role=Role.ADMIN)


def create(caller: Caller, **offer: Any) -> dict[str, Any]:
    answer = caller("POST", QUESTS, json={**OFFER, **offer})
    assert answer.status_code == 201, answer.text
    quest: dict[str, Any] = answer.get_json()
    return quest


def take(
    caller: Caller, quest: dict[str, Any], step: str, body: dict[str, Any] | None = None, **headers: str
) -> TestResponse:
    options: dict[str, Any] = {"json": body} if body is not None else {}
    return caller("POST", f"{QUESTS}/{quest['id']}/{step}", headers=headers, **options)


def code(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, str(answer.get_json().get("code"))


def test_a_quest_goes_from_offer_to_payment_and_the_boards_follow(
    creator: Caller, performer: Caller, admin: Caller, tenant: str
) -> None:
    quest = create(creator, tags=["docs"], requirements=["speaks German"])
    assert (quest["status"], quest["version"], quest["creator"]["id"]) == ("OPEN", 1, creator.id)
    claimed = take(performer, quest, "claim")
    assert (claimed.status_code, claimed.get_json()["performer"]["id"]) == (200, performer.id)
    assert claimed.headers["ETag"] == '"2"'
    assert take(performer, quest, "submit", {"submission": WORK}).get_json()["status"] == "PENDING_REVIEW"
    attested = take(creator, quest, "attestations", {"rating": 5, "comments": "Thank you!"})
    assert attested.status_code == 201
    done = attested.get_json()
    assert (done["status"], done["attestations"][0]["rating"]) == ("COMPLETE", 5)
    assert [(reward["type"], reward["status"]) for reward in done["rewards"]] == [
        ("XP", "paid"),
        ("REPUTATION", "paid"),
    ]
    me = performer("GET", "/api/v1/users/me").get_json()
    counted = ("experience_points", "reputation", "quests_completed", "attestations_received", "score")
    assert [me[name] for name in counted] == [100, 5, 1, 1, 0]
    projection.project_all(tenant, now=utcnow)
    for metric, value in (("xp", 100), ("reputation", 5)):
        board = admin("GET", f"/api/v1/leaderboards?scope=users&window=1d&metric={metric}").get_json()
        assert [(row["user"]["id"], row["value"]) for row in board["items"]] == [(performer.id, value)]
    assert admin("GET", "/api/v1/leaderboards?scope=users&window=all").get_json()["items"] == []
    entries = performer("GET", "/api/v1/users/me/ledger").get_json()["items"]
    assert {entry["account"] for entry in entries} == {"xp", "reputation"}


@pytest.mark.parametrize(
    ("offer", "field"),
    [
        ({"title": "x" * 101}, "title"),
        ({"title": "\u202eab\u2066"}, "title"),
        ({"description": "too short"}, "description"),
        ({"reward_xp": 9}, "reward_xp"),
        ({"reward_xp": 10_001}, "reward_xp"),
        ({"reward_xp": "100"}, "reward_xp"),
        ({"reward_reputation": 0}, "reward_reputation"),
        ({"reward_reputation": 101}, "reward_reputation"),
        ({"tags": ["x"] * 11}, "tags"),
        ({"tags": ["x" * 33]}, "tags.0"),
        ({"requirements": [""]}, "requirements.0"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
        ({"title": "\u200b\u200b\ufeffab"}, "title"),
        ({"attestations_required": 11}, "attestations_required"),
        ({"min_rating": 6}, "min_rating"),
        ({"user": "somebody"}, "user"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_not_valid_is_refused_by_field(creator: Caller, offer: dict[str, Any], field: str) -> None:
    answer = creator("POST", QUESTS, json={**OFFER, **offer})
    assert answer.status_code == 422, answer.text
    assert field in answer.get_json()["errors"]
    assert creator("GET", QUESTS).get_json()["items"] == []


def test_texts_are_stored_as_plain_text(creator: Caller) -> None:
    quest = create(creator, title=" <b>Bold</b>\u202e\x07 ", tags=["a", "a "], description="one\r\ntwo three four")
    assert (quest["title"], quest["tags"], quest["description"]) == ("<b>Bold</b>", ["a"], "one\ntwo three four")


def test_refusals_come_in_order(creator: Caller, performer: Caller, client: FlaskClient) -> None:
    quest = create(creator)
    nowhere = {"id": str(uuid4())}
    assert take(performer, nowhere, "submit", {"nonsense": 1}, **{"If-Match": '"9"'}).status_code == 404
    assert take(performer, quest, "submit", {"submission": ""}, **{"If-Match": '"9"'}).status_code == 422
    assert code(take(performer, quest, "submit", {"submission": WORK}, **{"If-Match": '"9"'})) == (412, "stale")
    assert code(take(creator, quest, "submit", {"submission": WORK}, **{"If-Match": '"1"'})) == (409, "quest_open")
    assert code(take(creator, quest, "claim", None, **{"If-Match": '"1"'})) == (403, "own_quest")
    assert take(performer, quest, "claim", None, **{"If-Match": '"1"'}).status_code == 200


def test_every_refusal_names_its_rule(
    creator: Caller, performer: Caller, admin: Caller, client: FlaskClient, tenant: str
) -> None:
    quest, stranger = create(creator, attestations_required=2), user_of(client, tenant)
    assert code(take(creator, quest, "claim")) == (403, "own_quest")
    take(performer, quest, "claim")
    assert code(take(stranger, quest, "claim")) == (409, "quest_claimed")
    assert code(take(stranger, quest, "submit", {"submission": WORK})) == (403, "not_performer")
    assert code(take(creator, quest, "cancel")) == (403, "admins_only")
    take(performer, quest, "submit", {"submission": WORK})
    assert code(take(performer, quest, "attestations", {"rating": 5})) == (403, "own_work")
    assert take(stranger, quest, "attestations", {"rating": 5}).status_code == 201
    assert code(take(stranger, quest, "attestations", {"rating": 5})) == (403, "already_attested")
    assert code(take(performer, quest, "withdraw")) == (409, "quest_attested")
    assert code(take(stranger, quest, "dispute", {"reason": "I do not like it"})) == (403, "not_involved")
    assert take(creator, quest, "dispute", {"reason": "too short"}).status_code == 422
    assert take(creator, quest, "dispute", {"reason": "not what I asked for"}).status_code == 200
    resolution = {"to": "COMPLETE", "reason": "it is fine"}
    assert code(take(creator, quest, "resolve", resolution)) == (403, "uninvolved_admins_only")
    assert take(admin, quest, "resolve", {"to": "CLAIMED", "reason": "x"}).status_code == 422
    assert take(admin, quest, "resolve", resolution).get_json()["status"] == "COMPLETE"
    for step, body in {"claim": None, "cancel": None, "withdraw": None, "release": None, "resolve": resolution}.items():
        assert code(take(admin, quest, step, body)) == (409, "quest_complete")


def test_an_expired_quest_is_expired_before_that_is_answered(creator: Caller, performer: Caller, tenant: str) -> None:
    world = World(tenant)
    for headers in ({}, {"Idempotency-Key": "once"}):
        quest = create(creator, expires_at=(utcnow() + timedelta(hours=1)).isoformat())
        world.let_expire(quest["id"])
        shown = creator("GET", f"{QUESTS}/{quest['id']}").get_json()
        assert (shown["status"], shown["version"]) == ("EXPIRED", 1), "shown as it is, before anybody wrote it"
        assert quest["id"] in [one["id"] for one in creator("GET", f"{QUESTS}?status=EXPIRED").get_json()["items"]]
        assert code(take(performer, quest, "claim", None, **headers)) == (409, "quest_expired")
        assert world.get(quest["id"]).status == Status.EXPIRED
        assert code(take(performer, quest, "claim", None, **headers)) == (409, "quest_expired")


def test_another_tenants_quest_does_not_exist(creator: Caller, client: FlaskClient, other_tenant: str) -> None:
    quest, outsider = create(creator), user_of(client, other_tenant)
    assert outsider("GET", f"{QUESTS}/{quest['id']}").status_code == 404
    for step in ("claim", "release", "submit", "withdraw", "attestations", "dispute", "resolve", "cancel"):
        assert code(take(outsider, quest, step, {})) == (404, "not_found")
    assert outsider("GET", QUESTS).get_json()["items"] == []
    assert outsider("GET", f"{QUESTS}?creator={creator.id}").status_code == 404


def test_a_client_acts_for_its_users_and_they_are_made_on_first_sight(
    client: FlaskClient, tenant: str, creator: Caller
) -> None:
    app = client_of(client, tenant, "quests:write")
    quest = app("POST", QUESTS, json={**OFFER, "user": "ada"}).get_json()
    assert quest["creator"]["external_id"] == "ada"
    assert code(take(app, quest, "claim", {"user": "ada"})) == (403, "own_quest")
    assert take(app, quest, "claim", {}).status_code == 422, "whom for?"
    assert take(app, quest, "claim", {"user": "not one"}).status_code == 422
    assert take(app, quest, "claim", {"user": "bob"}).get_json()["performer"]["external_id"] == "bob"
    assert take(app, quest, "submit", {"user": "bob", "submission": WORK}).status_code == 200
    assert take(app, quest, "attestations", {"user": "eve", "rating": 4}).get_json()["status"] == "COMPLETE"
    assert code(take(app, quest, "cancel", {"user": "ada"})) == (409, "quest_complete")
    other = app("POST", QUESTS, json={**OFFER, "user": "ada"}).get_json()
    assert code(take(app, other, "cancel")) == (422, "invalid"), "it is no admin"
    assert code(take(app, other, "cancel", {"user": "bob"})) == (403, "not_creator")
    assert take(client_of(client, tenant, "admin"), other, "cancel").status_code == 200
    assert app("GET", f"{QUESTS}?performer=ext:bob").get_json()["items"][0]["id"] == quest["id"]
    reader = client_of(client, tenant, "stats:read")
    assert reader("GET", QUESTS).status_code == 200
    assert code(reader("POST", QUESTS, json={**OFFER, "user": "ada"})) == (403, "insufficient_scope")


def test_idempotency_keys_and_versions(
    creator: Caller, performer: Caller, admin: Caller, client: FlaskClient, tenant: str
) -> None:
    key = {"Idempotency-Key": "one"}
    first, again = (creator("POST", QUESTS, json=OFFER, headers=key) for _ in range(2))
    assert first.get_json()["id"] == again.get_json()["id"]
    assert again.headers["Idempotent-Replay"] == "true"
    quest = first.get_json()
    claimed = [take(performer, quest, "claim", None, **key) for _ in range(2)]
    assert [answer.status_code for answer in claimed] == [200, 200]
    assert claimed[1].headers["ETag"] == '"2"'
    admin("PATCH", "/api/v1/settings", json={"quests": {"require_if_match": True}})
    assert code(take(performer, quest, "release")) == (428, "precondition_required")
    assert take(performer, quest, "release", None, **{"If-Match": '"2"'}).status_code == 200
    assert take(performer, quest, "claim", None, **{"If-Match": "*"}).status_code == 200, "any version, and it says so"


def test_a_tenant_may_have_no_quests_or_let_admins_create_them(creator: Caller, admin: Caller) -> None:
    quest = create(creator)
    admin("PATCH", "/api/v1/settings", json={"quests": {"members_create": False}})
    assert code(creator("POST", QUESTS, json=OFFER)) == (403, "admins_only")
    create(admin)
    admin("PATCH", "/api/v1/settings", json={"quests_enabled": False})
    for answer in (creator("GET", QUESTS), creator("POST", QUESTS, json=OFFER), take(creator, quest, "cancel")):
        assert code(answer) == (403, "quests_disabled")


def test_lists_by_filter_with_cursors(creator: Caller, performer: Caller) -> None:
    quests = [create(creator, tags=["docs"]) for _ in range(3)]
    newest_first = [quest["id"] for quest in quests[::-1]]
    take(performer, quests[0], "claim")
    take(performer, quests[0], "submit", {"submission": WORK})

    def listed(query: str, caller: Caller = creator, path: str = QUESTS) -> list[str]:
        found: list[str] = []
        cursor = ""
        while True:
            answer = caller("GET", f"{path}?limit=2{query}{cursor}").get_json()
            found += [quest["id"] for quest in answer["items"]]
            assert all("submission" not in quest for quest in answer["items"])
            if answer["next_cursor"] is None:
                return found
            cursor = f"&cursor={answer['next_cursor']}"

    assert listed("") == listed("&tag=docs") == listed("&creator=me") == newest_first
    assert listed("&status=OPEN") == newest_first[:2]
    assert listed("&performer=me", performer) == listed("&to_attest=me") == [quests[0]["id"]]
    assert listed("&to_attest=me", performer) == []
    of_users = "/api/v1/users/me/quests"
    assert listed("", creator, of_users) == newest_first
    assert listed("&role=performed", performer, of_users) == [quests[0]["id"]]
    assert creator("GET", f"{QUESTS}?status=DONE").status_code == 422
    assert creator("GET", f"{QUESTS}?cursor=x").status_code == 422
    assert code(creator("GET", f"{QUESTS}?to_attest={performer.id}")) == (403, "others_work")


def test_a_template_gives_what_is_not_sent(creator: Caller, admin: Caller) -> None:
    template = admin("POST", "/api/v1/quest-templates", json={**OFFER, "tags": ["docs"]}).get_json()
    quest = creator("POST", QUESTS, json={"template": template["id"], "title": "My own title"}).get_json()
    assert (quest["title"], quest["reward_xp"], quest["tags"]) == ("My own title", 100, ["docs"])
    assert creator("POST", QUESTS, json={"template": str(uuid4())}).status_code == 404
    missing = creator("POST", QUESTS, json={"title": "No reward"})
    assert missing.get_json()["errors"].keys() == {"description", "reward_xp", "reward_reputation"}


def test_a_suspended_user_is_ours_out_and_not_acted_for(
    creator: Caller, performer: Caller, admin: Caller, client: FlaskClient, tenant: str
) -> None:
    app = client_of(client, tenant, "quests:write")
    quest = create(creator)
    take(app, quest, "claim", {"user": "bob"})
    bob = app("GET", f"{QUESTS}/{quest['id']}").get_json()["performer"]["id"]
    admin("PATCH", f"/api/v1/users/{bob}", json={"suspended": True})
    assert code(take(app, quest, "submit", {"user": "bob", "submission": WORK})) == (403, "user_suspended")
    admin("PATCH", f"/api/v1/users/{performer.id}", json={"suspended": True})
    assert take(performer, create(creator), "claim").status_code == 401


def test_steps_are_limited_and_self_registered_members_learn_of_no_external_ids(
    creator: Caller, performer: Caller, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_of(client, tenant, "quests:write")("POST", QUESTS, json={**OFFER, "user": "ada"})
    for reference in ("ext:ada", "ext:nobody"):
        assert performer("GET", f"{QUESTS}?creator={reference}").status_code == 404
        assert performer("GET", f"/api/v1/users/{reference}/quests").status_code == 404
    assert len(creator("GET", f"{QUESTS}?creator=ext:ada").get_json()["items"]) == 1
    monkeypatch.setitem(quests.STEPS_PER_MINUTE, "user", 2)
    quest = create(creator)
    for step in ("claim", "release"):
        assert take(performer, quest, step).status_code == 200
    refused = take(performer, quest, "claim")
    assert (code(refused), "Retry-After" in refused.headers) == ((429, "rate_limited"), True)


def test_xp_moves_no_points_limits_caps_or_reversals(creator: Caller, performer: Caller, admin: Caller) -> None:
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "daily_limit": 1, "daily_cap": 10})
    limits = {"limits": {"score_updates_per_minute": 1}, "integrity": {"points_per_hour": 5}}
    assert admin("PATCH", "/api/v1/settings", json=limits).status_code == 200
    quest = create(creator)
    take(performer, quest, "claim")
    take(performer, quest, "submit", {"submission": WORK})
    assert take(creator, quest, "attestations", {"rating": 5}).get_json()["status"] == "COMPLETE"
    assert admin("GET", "/api/v1/integrity/flags").get_json()["items"] == [], "100 XP are no points"
    update = {"actionId": str(uuid4()), "actionType": "post", "timestamp": utcnow().isoformat()}
    paid = performer("POST", "/api/v1/scores/update", json=update)
    assert (paid.status_code, paid.get_json()["score"]) == (200, 10), "neither limit nor cap was used by the quest"
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    assert (flag["rule"], flag["details"]["accounts"], len(flag["details"]["entries"])) == (
        "points_per_hour",
        ["points"],
        1,
    )
    reversal = admin("POST", f"/api/v1/integrity/flags/{flag['id']}/resolve", json={"action": "reverse"})
    assert reversal.get_json()["reversed_entries"] == 1
    me = performer("GET", "/api/v1/users/me").get_json()
    assert [me[name] for name in ("score", "experience_points", "reputation")] == [0, 100, 5]
