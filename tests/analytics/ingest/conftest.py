"""What tests of ingest share."""

from typing import Any

from tests.people import Caller


def view(page: str, **more: Any) -> dict[str, Any]:
    return {"type": "view", "page": page, **more}


def send(caller: Caller, events: list[Any], **options: Any) -> dict[str, Any]:
    answer = caller("POST", "/api/v1/events", json={"events": events}, **options)
    assert answer.status_code == 202, answer.text
    body: dict[str, Any] = answer.get_json()
    return body
