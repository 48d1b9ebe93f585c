"""The fixtures of scores and boards, for their routes."""

from tests.analytics.boards.conftest import app_client, board
from tests.analytics.conftest import admin, page, player, sender

__all__ = ["admin", "app_client", "board", "page", "player", "sender"]
