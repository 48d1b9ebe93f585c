"""A Python client generated from the contract, by a generator that knows nothing of us, calls the running service."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from flask import Flask
from openapi_python_client import generate
from openapi_python_client.config import Config, ConfigFile, MetaType

from analytics.boards import projection
from tenants.db import utcnow
from tests.app.server.served import served
from tests.contract.conformity import specification
from tests.people import client_of

pytestmark = pytest.mark.long

# The generator knows no body of plain text, and no images.
NOT_GENERATED = {"POST /api/v1/beacon", "GET /embed/badge/{external_id}.svg"}


class Generated:
    """The generated package: its modules are imported when they are used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def call(self, operation: str) -> Any:
        return importlib.import_module(f"{self.name}.api.{operation}").sync

    def model(self, name: str) -> Any:
        return getattr(importlib.import_module(f"{self.name}.models"), name)


@pytest.fixture
def generated(app: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Generated]:
    document, package = tmp_path / "openapi.json", tmp_path / "plaudit_client"
    document.write_bytes(orjson.dumps(specification(app)))
    config = Config.from_sources(
        ConfigFile(post_hooks=[]), MetaType.NONE, document, file_encoding="utf-8", overwrite=True, output_path=package
    )
    warned = {
        str(error.header).removeprefix("WARNING parsing ").partition(" within ")[0] for error in generate(config=config)
    }
    assert warned == NOT_GENERATED, "of these the generator has omitted something"
    monkeypatch.syspath_prepend(tmp_path)
    yield Generated(package.name)
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]


def test_it_sends_a_batch_reads_a_board_and_gets_typed_problems(app: Flask, tenant: str, generated: Generated) -> None:
    token = client_of(app.test_client(), tenant).token
    with served(app) as url:
        client = importlib.import_module(generated.name).AuthenticatedClient(base_url=url, token=token)

        page = generated.model("PagePutIn")(space="docs", title="A page", url="/a")
        assert generated.call("pages.put_page")("a", client=client, body=page).external_id == "a"

        event, kind = generated.model("EventIn"), generated.model("EventInType")
        batch = [event(kind.LIKE, page="a", user="ann"), event(kind.VIEW, page="a", id="1"), event(kind.VIEW, page="b")]
        sent = generated.call("events.send_events")(client=client, body=generated.model("EventsIn")(batch))
        assert (sent.accepted, sent.duplicates) == (2, 0)
        (rejected,) = sent.rejected
        assert (rejected.index, rejected.code) == (2, generated.model("RejectionOutCode").UNKNOWN_PAGE)

        projection.project_all(tenant, now=utcnow)
        board = generated.call("leaderboards.read_board")(
            client=client, metric=generated.model("ReadBoardMetric").LIKES
        )
        assert [(row.rank, row.value, row.page.external_id) for row in board.items] == [(1, 1, "a")]

        missing = generated.call("pages.get_page")("nowhere", client=client)
        assert isinstance(missing, generated.model("Problem"))
        assert (missing.status, missing.code) == (404, "not_found")
        limits = generated.model("LimitsIn")(live_connections=-1)
        settings = generated.model("SettingsIn")(limits=limits)
        refused = generated.call("settings.change_settings")(client=client, body=settings)
        assert (refused.status, [*refused.errors.to_dict()]) == (422, ["limits.live_connections"])
