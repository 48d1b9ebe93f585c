"""The weights of the score over HTTP."""

from typing import Any

import pytest

from tests.people import Caller


@pytest.mark.parametrize(
    "wrong",
    [
        {"likes": -1, "views": 1},
        {"likes": "1", "views": 1},
        {"likes": 0, "views": 0},
        {"likes": 1},
        {"likes": 1e99, "views": 1},
    ],
)
def test_wrong_weights_are_refused_by_field(app_client: Caller, wrong: dict[str, Any]) -> None:
    answer = app_client("PUT", "/api/v1/settings/weights", json=wrong)
    assert (answer.status_code, bool(answer.get_json()["errors"])) == (422, True)
