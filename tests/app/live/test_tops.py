"""The first rows of boards: read once for all connections."""

from typing import Any

import orjson
import pytest

from app.live import tops as live_tops
from app.live.tops import Top, Tops
from tenants.errors import Unavailable
from tests.app.live.test_hub import BOARD


def test_rows_are_read_once_however_many_ask_also_where_they_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    answers: list[Top | None] = [Top(1, [], orjson.Fragment(b"[]")), None]

    def read(*_args: Any, **_kwargs: Any) -> Top | None:
        reads.append(1)
        return answers[min(len(reads), len(answers)) - 1]

    monkeypatch.setattr(live_tops, "_read", read)
    tops = Tops()
    for _ in range(100):
        assert tops.get(BOARD, 10, 1, external_ids=True).version == 1
    assert len(reads) == 1
    for _ in range(100):
        with pytest.raises(Unavailable):
            tops.get(BOARD, 10, 2, external_ids=True)
    assert len(reads) == 2
