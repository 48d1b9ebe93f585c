"""Names and pictures that come with events: applied with an accepted event, and written only if they differ."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.boards import projection
from analytics.ingest import imports
from analytics.ingest.events import Ages
from tenants import pipelines, users
from tenants.db import tenant_tx, utcnow
from tenants.pipelines import Driver, Statement
from tests.analytics.conftest import make_page
from tests.analytics.ingest.conftest import send, view
from tests.people import Caller, client_of

PICTURE = "https://pictures.example/{}.png"


@pytest.fixture
def app_(client: FlaskClient, tenant: str, admin: Caller) -> Caller:
    make_page(admin, "home")
    return client_of(client, tenant, "events:write")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are sent to PostgreSQL, besides those that SQLAlchemy executes."""
    statements: list[str] = []
    exchange = pipelines.exchange

    def record(driver: Driver, sending: list[Statement]) -> Any:
        statements.extend(one.sql.decode() for one in sending)
        return exchange(driver, sending)

    monkeypatch.setattr(pipelines, "exchange", record)
    return statements


def person(of: str, **more: str) -> dict[str, str]:
    return {"id": of, "name": of.title(), "avatar_url": PICTURE.format(of), **more}


def profile_of(tenant: str, external_id: str) -> tuple[str | None, str | None] | None:
    with tenant_tx(tenant) as tx:
        try:
            user = users.find(tx, f"ext:{external_id}")
        except users.UserNotFound:
            return None
        return user.display_name, user.avatar_url


def test_a_profile_is_applied_with_an_event_that_is_accepted(app_: Caller, tenant: str) -> None:
    like = {"type": "like", "page": "home"}
    action = {"type": "action", "action_type": "post"}
    known = {"display_name": "Known", "avatar_url": None}
    with tenant_tx(tenant) as tx:
        for name in ("viewer", "partly", "twice"):
            users.change(tx, users.get(tx, users.ensure_external(tx, name, now=utcnow())), known, now=utcnow())
    events = [
        {**like, "user": person("liker", name="  Liker ")},
        {**action, "user": person("actor"), "id": "a-1"},
        view("home", user=person("viewer")),
        view("home", user={"id": "partly", "avatar_url": PICTURE.format("partly"), "name": None}),
        view("home", user=person("nobody")),
        {**like, "user": person("twice", name="First"), "id": "l-1"},
        {**like, "user": {"id": "twice", "name": "Second"}},
        {**like, "user": person("twice", name="A duplicate"), "id": "l-1"},
        {**action, "user": person("actor", name="A duplicate"), "id": "a-1"},
        {**like, "page": "nowhere", "user": person("twice", name="Of no page")},
        {"type": "action", "action_type": "unknown", "user": person("stranger")},
    ]
    answer = send(app_, events)
    codes = [(one["index"], one["code"]) for one in answer["rejected"]]
    assert (answer["accepted"], answer["duplicates"], codes) == (7, 2, [(9, "unknown_page"), (10, "unknown_action")])
    assert {name: profile_of(tenant, name) for name in ("liker", "actor", "viewer", "partly", "twice")} == {
        "liker": ("Liker", PICTURE.format("liker")),
        "actor": ("Actor", PICTURE.format("actor")),
        "viewer": ("Viewer", PICTURE.format("viewer")),
        "partly": ("Known", PICTURE.format("partly")),
        "twice": ("Second", PICTURE.format("twice")),
    }
    assert profile_of(tenant, "nobody") is profile_of(tenant, "stranger") is None, "a view creates nobody"
    reasons = app_("GET", "/api/v1/ingest/rejections").get_json()["reasons"]
    assert reasons == {"unknown_page": 1, "unknown_action": 1}
    assert app_("POST", "/api/v1/pages/home/views", json={"user": person("viewer", name="V")}).status_code == 202
    assert profile_of(tenant, "viewer") == ("V", PICTURE.format("viewer"))


@pytest.mark.parametrize(
    ("user", "detail"),
    [
        ({"id": "u", "name": "a\nb"}, "user.name"),
        ({"id": "u", "name": " "}, "user.name"),
        ({"id": "u", "avatar_url": "javascript:alert(1)"}, "user.avatar_url"),
        ({"id": "has space", "name": "x"}, "user"),
        ({"name": "x"}, "id"),
        ({"id": "u", "email": "x"}, "email"),
        (["u"], "user"),
    ],
)
def test_an_event_with_a_wrong_profile_is_rejected(app_: Caller, tenant: str, user: Any, detail: str) -> None:
    answer = send(app_, [{"type": "like", "page": "home", "user": user}, {"type": "like", "page": "home", "user": "v"}])
    assert (answer["accepted"], [one["code"] for one in answer["rejected"]]) == (1, ["invalid"])
    assert detail in answer["rejected"][0]["detail"]
    assert profile_of(tenant, "u") is None


def test_events_without_a_profile_send_nothing_more_and_the_same_profile_writes_nothing(
    app_: Caller, tenant: str, sent: list[str]
) -> None:
    def versions() -> list[Any]:
        with tenant_tx(tenant) as tx:
            return list(tx.scalars(text("SELECT xmin || ' ' || xmax FROM users WHERE tenant_id = :t"), {"t": tenant}))

    send(app_, [{"type": "like", "page": "home", "user": "ada"}])
    (place,) = (place for place, one in enumerate(sent) if "write_page_events" in one)
    assert sent[place + 1] == "COMMIT", "in the same round trip"
    assert not any("profiles" in one for one in sent)
    send(app_, [{"type": "like", "page": "home", "user": person("ada")}])
    assert any("apply_profiles" in one for one in sent)
    projection.project_all(tenant, now=utcnow)
    before = versions()
    send(app_, [view("home", user=person("ada"))])
    assert versions() == before, "neither written nor locked"
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM outbox WHERE tenant_id = :t AND kind = 'user'"), {"t": tenant}) == 0


def test_batches_with_actions_and_profiles_of_the_same_people_do_not_deadlock(
    app_: Caller, admin: Caller, tenant: str
) -> None:
    """Each batch pays some, renames others, and creates new ones, in an order of its own."""
    names = [f"u{n}" for n in range(6)]
    for name in names:  # nothing but users is in two batches at once
        make_page(admin, name)
        assert admin("PUT", f"/api/v1/users/ext:{name}", json={}).status_code == 201

    def batch(number: int) -> int:
        page, mixed = names[number % 6], names[number % 6 :] + names[: number % 6]
        new = [f"new-{number // 3}-{n}" for n in range(3)]
        events = [
            *({"type": "like", "page": page, "user": person(name, name=f"{name} {number}")} for name in mixed[:4]),
            *({"type": "action", "action_type": "post", "user": person(name)} for name in (*mixed[3:], *new)),
        ]
        return int(send(app_, events, headers={"Idempotency-Key": f"k-{number}"})["accepted"])

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(batch, range(18))) == [10] * 18
    with tenant_tx(tenant) as tx:
        unnamed = text("SELECT count(*) FROM users WHERE tenant_id = :t AND display_name IS NULL")
        assert tx.scalar(unnamed, {"t": tenant}) == 0


def test_lines_of_an_import_have_profiles_too(app_: Caller, tenant: str, tmp_path: Path) -> None:
    file = tmp_path / "history.ndjson"
    file.write_text('{"type": "like", "page": "home", "user": {"id": "ada", "name": "Ada"}}\n')
    now = utcnow()
    file_hash, _ = imports.hash_file(file)
    with tenant_tx(tenant) as tx:
        imports.begin(tx, file_hash, name="history", now=now)
    steps: Iterator[imports.Chunk] = imports.run(
        tenant, file, file_hash, lines_done=0, ages=Ages.for_caller(now, backfill_days=None), now=now
    )
    assert [chunk.rejects for chunk in steps] == [[]]
    assert profile_of(tenant, "ada") == ("Ada", None)
