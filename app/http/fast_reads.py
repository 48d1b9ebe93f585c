"""Reads of the fast lane: the top of a board, a rank, a page's numbers, on their plain cases.

An answer that is kept is found by its address alone. Otherwise a plain question (known parameters, nothing encoded) is
read here and answered by the functions that the routes use.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from analytics.windows import WINDOWS
from app.http import conditional
from app.http.answer_cache import Answer
from app.http.auth import Actor, Reader
from app.http.board_answers import answer_key, page_rank_answer, stats_answer, top_answer
from app.http.boards import board_for
from app.http.fast_answer import FastAnswer
from app.http.fast_calls import Environ, FastCall
from app.http.rights import May
from app.http.services import Services

BOARDS, RANKS = "/api/v1/leaderboards", "/api/v1/leaderboards/rank"
STATS = re.compile(r"/api/v1/pages/([^/]+)/stats")
# A query without anything that is encoded, sent twice or empty.
QUERY = re.compile(r"(?:[a-z_]+=[A-Za-z0-9._~:@-]+(?:&[a-z_]+=[A-Za-z0-9._~:@-]+)*)?")
MAX_QUERY_CHARS = 256
NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")
DEFAULT_LIMIT, MAX_ROWS, MAX_AROUND = 10, 1_000, 100


class FastReads:
    def __init__(self, services: Services) -> None:
        self._cache = services.boards
        self._threads = services.threads
        self._boards = FastCall("GET", BOARDS, May.READ_BOARDS, self._read_top)
        self._ranks = FastCall("GET", RANKS, May.READ_BOARDS, self._read_rank)
        self._stats = FastCall("GET", "/api/v1/pages/<external_id>/stats", May.READ_BOARDS, self._read_stats)

    def find(self, environ: Environ) -> FastCall | None:
        path = environ["PATH_INFO"]
        if path == BOARDS:
            return self._boards
        if path == RANKS:
            return self._ranks
        if path.endswith("/stats") and not environ.get("QUERY_STRING") and STATS.fullmatch(path):
            return self._stats
        return None

    def _read_top(self, actor: Actor, environ: Environ) -> FastAnswer | None:
        return self._answer(actor, environ, self._compute_top)

    def _read_rank(self, actor: Actor, environ: Environ) -> FastAnswer | None:
        if "member=me" in environ.get("QUERY_STRING", ""):  # each caller has another answer
            return None
        return self._answer(actor, environ, self._compute_rank)

    def _read_stats(self, actor: Actor, environ: Environ) -> FastAnswer | None:
        return self._answer(actor, environ, self._compute_stats)

    def _answer(
        self, actor: Actor, environ: Environ, compute: Callable[[Reader, Any, Environ], Answer | None]
    ) -> FastAnswer | None:
        reader = actor.reader
        key = answer_key(reader, f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}")
        answer = self._cache.find(key)
        if answer is None:
            with self._threads.of(reader.tenant_id):
                answer = compute(reader, key, environ)
        if answer is None:
            return None
        return answer.unchanged if conditional.caller_has(answer, environ) else answer.whole

    def _compute_top(self, reader: Reader, key: Any, environ: Environ) -> Answer | None:
        query = plain_query(environ.get("QUERY_STRING", ""))
        if query is None or not query.keys() <= {"scope", "window", "metric", "limit"}:
            return None
        limit = _number(query.get("limit"), default=DEFAULT_LIMIT, minimum=1, maximum=MAX_ROWS)
        board = board_for(reader, _board_query(query))
        if limit is None:
            return None
        memory = self._cache.memory
        return self._cache.get(
            board, key, partial(top_answer, reader, board, limit, None, explain=False, memory=memory)
        )

    def _compute_rank(self, reader: Reader, key: Any, environ: Environ) -> Answer | None:
        query = plain_query(environ.get("QUERY_STRING", ""))
        if query is None or not query.keys() <= {"scope", "window", "metric", "member", "around"}:
            return None
        around = _number(query.get("around"), default=0, minimum=0, maximum=MAX_AROUND)
        board = board_for(reader, _board_query(query))
        if "member" not in query or around is None or board.is_users:
            return None
        memory = self._cache.memory
        return self._cache.get(
            board, key, partial(page_rank_answer, reader, board, query["member"], around, memory=memory)
        )

    def _compute_stats(self, reader: Reader, key: Any, environ: Environ) -> Answer | None:
        external_id = environ["PATH_INFO"].split("/")[4]
        return self._cache.get_of_tenant(reader.tenant_id, key, partial(stats_answer, reader, external_id))


def plain_query(text: str) -> Mapping[str, str] | None:
    """The parameters of a query that needs no decoding and is not long; None: the route must read it."""
    return _plain_query(text) if len(text) <= MAX_QUERY_CHARS else None


@lru_cache(maxsize=10_000)
def _plain_query(text: str) -> Mapping[str, str] | None:
    if QUERY.fullmatch(text) is None:
        return None
    pairs = [(part.split("=")[0], part.split("=")[1]) for part in text.split("&")] if text else []
    query = dict(pairs)
    return query if len(query) == len(pairs) else None


def _board_query(query: Mapping[str, str]) -> dict[str, Any]:
    """As the route's schema loads it. An unknown window is the route's to refuse."""
    return {**query, "window": WINDOWS[query.get("window", "7d")]}


def _number(text: str | None, *, default: int, minimum: int, maximum: int) -> int | None:
    if text is None:
        return default
    number = int(text) if NUMBER.fullmatch(text) else -1
    return number if minimum <= number <= maximum else None
