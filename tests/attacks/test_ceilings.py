"""What a tenant makes has a ceiling, which an operator sets and the tenant cannot raise."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from analytics.boards import projection
from analytics.ingest import imports, pages
from analytics.ingest.events import Ages
from tenants import ceilings
from tenants.ceilings import Ceiling
from tenants.db import Tx, owner_tx, tenant_tx, utcnow
from tests.analytics.conftest import likes_of, make_page
from tests.people import PASSWORD, Caller, client_of, user_of
from tests.service import eventually


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


def limit(tenant: str, **most: int) -> None:
    with owner_tx() as tx:
        ceilings.change(tx, tenant, {Ceiling(name): number for name, number in most.items()})


def put(caller: Caller, page: str, space: str = "eng", **more: str) -> TestResponse:
    body = {"space": space, "title": page, "url": f"https://wiki.example/{page}", **more}
    return caller("PUT", f"/api/v1/pages/{page}", json=body)


def refusal(answer: TestResponse) -> tuple[int, str, bool]:
    body = answer.get_json()
    return answer.status_code, body.get("code", ""), "2" in body.get("detail", "")


REFUSED = (409, "ceiling_reached", True)


def test_a_tenant_has_so_many_pages_and_can_still_change_them(admin: Caller, tenant: str) -> None:
    limit(tenant, pages=2)
    assert [put(admin, name).status_code for name in "ab"] == [201, 201]
    refused = put(admin, "c")
    assert refusal(refused) == REFUSED
    assert "pages" in refused.get_json()["detail"]
    assert put(admin, "a", visibility="public").status_code == 200
    admin("DELETE", "/api/v1/pages/a")
    assert eventually(lambda: put(admin, "c").status_code == 201)
    limit(tenant, pages=3)
    assert eventually(lambda: put(admin, "d").status_code == 201)


def test_a_tenant_has_so_many_spaces_also_by_moving_pages(admin: Caller, tenant: str) -> None:
    limit(tenant, spaces=2)
    assert [put(admin, name, space).status_code for name, space in (("a", "s1"), ("b", "s2"))] == [201, 201]
    assert refusal(put(admin, "c", "s3")) == REFUSED
    assert refusal(put(admin, "a", "s3")) == REFUSED
    assert put(admin, "c", "s1").status_code == 201


def test_a_space_whose_boards_remain_has_not_made_room(admin: Caller, tenant: str) -> None:
    limit(tenant, spaces=2)
    for space in ("s1", "s2"):
        assert put(admin, "a", space).status_code in {200, 201}
        admin("POST", "/api/v1/pages/a/views")
        projection.project_all(tenant, now=utcnow)
    time.sleep(0.1)
    assert refusal(put(admin, "a", "s3")) == REFUSED
    assert put(admin, "a", "s1").status_code == 200


def test_a_tenant_has_so_many_users_however_they_are_made(admin: Caller, client: FlaskClient, tenant: str) -> None:
    limit(tenant, users=2)
    admin("PATCH", "/api/v1/settings", json={"signup_open": True})
    make_page(admin, "p")
    assert admin("PUT", "/api/v1/pages/p/likes/u1").status_code == 200
    assert put(admin, "q", owner="u2").status_code == 201
    body = {"tenant": tenant, "username": "newcomer", "email": "n@example.org", "password": PASSWORD}
    assert refusal(client.post("/api/v1/auth/register", json=body)) == REFUSED
    assert refusal(put(admin, "r", owner="u3")) == REFUSED
    assert refusal(admin("PUT", "/api/v1/pages/p/likes/u3")) == REFUSED
    keyed = admin("PUT", "/api/v1/pages/p/likes/u3", headers={"Idempotency-Key": "k"})
    assert refusal(keyed) == REFUSED
    assert admin("PUT", "/api/v1/pages/p/likes/u2").get_json()["likes"] == 2
    assert likes_of(tenant, "p") == (2, 2)


def test_in_a_call_with_many_pages_only_those_above_a_ceiling_are_refused(admin: Caller, tenant: str) -> None:
    limit(tenant, pages=3, spaces=2, users=1)
    wanted = [
        ("a", "s1", "u1"),
        ("b", "s2", "u2"),
        ("c", "s2", None),
        ("d", "s3", None),
        ("e", "s1", "u1"),
        ("f", "s1", None),
    ]
    items = [
        {"external_id": name, "space": space, "title": name, "url": f"/{name}", **({"owner": owner} if owner else {})}
        for name, space, owner in wanted
    ]
    answer = admin("POST", "/api/v1/pages", json={"pages": items}).get_json()
    assert {one["code"] for one in answer["rejected"]} == {"ceiling_reached"}
    reached = [(one["index"], one["detail"].partition(":")[0].split()[-1]) for one in answer["rejected"]]
    assert reached == [(1, "users"), (3, "spaces"), (5, "pages")]
    assert admin("POST", "/api/v1/pages", json={"pages": items[:1]}).get_json()["updated"] == 1


def test_in_a_batch_only_what_needs_another_user_is_refused_and_can_be_sent_again(admin: Caller, tenant: str) -> None:
    limit(tenant, users=2)
    make_page(admin, "p")
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10})
    likes = [{"type": "like", "page": "p", "user": f"u{number}", "id": f"e{number}"} for number in range(4)]
    events: list[dict[str, Any]] = [*likes, {"type": "view", "page": "p"}]
    answer = admin("POST", "/api/v1/events", json={"events": events}).get_json()
    assert answer["accepted"] == 3
    assert [(one["index"], one["code"]) for one in answer["rejected"]] == [(2, "limited"), (3, "limited")]
    act = {"type": "action", "action_type": "post", "id": "x"}
    actions = [{**act, "user": "u1"}, {**act, "user": "u9", "id": "y"}]
    answer = admin("POST", "/api/v1/events", json={"events": actions}).get_json()
    assert answer["accepted"] == 1
    assert [one["code"] for one in answer["rejected"]] == ["limited"]
    assert admin("GET", "/api/v1/ingest/rejections").get_json()["reasons"]["limited"] == 3
    limit(tenant, users=4)
    again = admin("POST", "/api/v1/events", json={"events": likes}).get_json()
    assert (again["accepted"], again["duplicates"], again["rejected"]) == (2, 2, [])
    assert likes_of(tenant, "p") == (4, 4)


def test_in_an_import_only_what_needs_another_user_is_refused(admin: Caller, tenant: str, tmp_path: Path) -> None:
    limit(tenant, users=2)
    make_page(admin, "p")
    file, now = tmp_path / "likes.ndjson", utcnow()
    file.write_text("".join(f'{{"type": "like", "page": "p", "user": "u{number}"}}\n' for number in range(3)))
    file_hash, _ = imports.hash_file(file)
    with tenant_tx(tenant) as tx:
        imports.begin(tx, file_hash, name="likes", now=now)
    ages = Ages.for_caller(now, backfill_days=None)
    (chunk,) = imports.run(tenant, file, file_hash, lines_done=0, ages=ages, now=now)
    assert [(reject.line, reject.rejection.code) for reject in chunk.rejects] == [(3, "limited")]
    assert likes_of(tenant, "p") == (2, 2)


def test_a_tenant_has_so_many_segments(admin: Caller, client: FlaskClient, tenant: str) -> None:
    limit(tenant, segments=2)
    paths = [f"/api/v1/users/{user_of(client, tenant).id}" for _ in range(3)]
    for path, segment in zip(paths, ("north", "south"), strict=False):
        assert admin("PATCH", path, json={"segment": segment}).status_code == 200
    assert refusal(admin("PATCH", paths[2], json={"segment": "west"})) == REFUSED
    assert refusal(admin("PATCH", paths[2], json={"segments": ["north", "west"]})) == REFUSED
    assert admin("PATCH", paths[2], json={"segments": ["north", "south"]}).status_code == 200
    assert admin("PATCH", paths[2], json={"segment": "north", "bio": "b"}).status_code == 200
    assert admin("PATCH", paths[2], json={"segment": None}).status_code == 200


def test_a_count_that_takes_too_long_is_made_beside_the_request(
    admin: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(tenant, pages=2)
    real = pages.count

    def count_slowly(tx: Tx, most: int) -> int:
        tx.execute(text("SELECT pg_sleep(3)"))
        return real(tx, most)

    monkeypatch.setattr(ceilings, "COUNT_TIMEOUT_MS", 50)
    monkeypatch.setattr(pages, "count", count_slowly)
    began = time.monotonic()
    assert put(admin, "a").status_code == 201
    assert put(admin, "b").status_code == 201
    assert time.monotonic() - began < 3
    names = (f"c{number}" for number in itertools.count())
    assert eventually(lambda: put(admin, next(names)).status_code == 409), "once it is counted"
