"""Users over HTTP: who may read, export and delete whom."""

from flask.testing import FlaskClient

from tenants.users import Role
from tests.people import Caller, client_of, user_of


def test_members_see_their_own_only(admin: Caller, client: FlaskClient, tenant: str, player: Caller) -> None:
    other = user_of(client, tenant)
    for path in ("ledger", "actions", "export"):
        assert player("GET", f"/api/v1/users/me/{path}").status_code == 200
        assert player("GET", f"/api/v1/users/{other.id}/{path}").status_code == 404
        assert admin("GET", f"/api/v1/users/{other.id}/{path}").status_code == 200
    assert player("DELETE", f"/api/v1/users/{other.id}").status_code == 404
    boss = user_of(client, tenant, role=Role.ADMIN)
    writer = client_of(client, tenant, "users:write")
    assert writer("DELETE", f"/api/v1/users/{boss.id}").status_code == 403
    assert writer("DELETE", f"/api/v1/users/{other.id}").status_code == 200
