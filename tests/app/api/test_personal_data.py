"""All data about a user over HTTP: it is what the contract says, though it is streamed."""

from app.api.personal_data import ExportOut
from tests.people import Caller


def test_an_export_has_every_documented_part_and_its_erasure_a_receipt(player: Caller) -> None:
    answer = player("GET", "/api/v1/users/me/export")
    assert (answer.status_code, answer.mimetype) == (200, "application/json")
    exported = answer.get_json()
    assert exported.keys() >= ExportOut().fields.keys()
    assert ExportOut().validate(exported) == {}
    assert exported["profile"]["id"] == player.id
    receipt = player("DELETE", "/api/v1/users/me")
    assert (receipt.status_code, receipt.get_json()["id"]) == (200, player.id)
    assert receipt.get_json()["sessions"] >= 1
