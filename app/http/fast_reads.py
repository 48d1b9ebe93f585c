"""Reads of the fast lane: the top of a board, a rank, a page's numbers, on their plain cases.

An answer that is kept is found by its address alone. Otherwise a plain question (known parameters, nothing encoded) is
read here and answered by the functions that the routes use.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import structlog

from analytics.boards import reading
from analytics.boards.names import Board
from analytics.boards.reading import Around, ShownBoard, Top
from analytics.ingest import pages
from analytics.ingest.pages import EXTERNAL_ID
from analytics.windows import WINDOWS
from app.http import conditional
from app.http.answer_cache import Answer
from app.http.auth import Actor, Reader
from app.http.board_answers import (
    answer_key,
    is_on,
    page_rank_answer,
    render_rank,
    render_top,
    stats_answer,
    top_answer,
)
from app.http.boards import board_for
from app.http.fast_answer import FastAnswer
from app.http.fast_calls import BoardQuestion, Environ, FastRead, UnknownPage
from app.http.rights import May
from app.http.services import Services
from tenants.db import utcnow
from tenants.shares import current_caller

BOARDS, RANKS = "/api/v1/leaderboards", "/api/v1/leaderboards/rank"
STATS = re.compile(r"/api/v1/pages/([^/]+)/stats")
# A query without anything that is encoded, sent twice or empty.
QUERY = re.compile(r"(?:[a-z_]+=[A-Za-z0-9._~:@-]+(?:&[a-z_]+=[A-Za-z0-9._~:@-]+)*)?")
MAX_QUERY_CHARS = 256
NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")
DEFAULT_LIMIT, MAX_ROWS, MAX_AROUND = 10, 1_000, 100

log = structlog.get_logger()


class FastReads:
    def __init__(self, services: Services) -> None:
        self._cache = services.boards
        self._threads = services.threads
        self._boards = self._read_of(BOARDS, self._top_question, self._compute_top)
        self._ranks = self._read_of(RANKS, self._rank_question, self._compute_rank)
        self._stats = self._read_of("/api/v1/pages/<external_id>/stats", None, self._compute_stats)

    def _read_of(self, route: str, question: "FindQuestion | None", compute: "Compute") -> FastRead:
        return FastRead("GET", route, May.READ_BOARDS, self._kept, question, partial(self._answer, compute))

    def find(self, _method: str, path: str, query: str) -> FastRead | None:
        if path == BOARDS:
            return self._boards
        if path == RANKS:
            # Each caller has another answer to `member=me`.
            return self._ranks if "member=me" not in query else None
        if path.endswith("/stats") and not query and STATS.fullmatch(path):
            return self._stats
        return None

    def answer_together(self, questions: Sequence[BoardQuestion]) -> list[Answer | None]:
        """The answers to several questions, by two round trips to Redis. None: each must be answered by itself."""
        distinct = {question.key: question for question in questions}
        asked = [(question.board, question.part) for question in distinct.values()]
        shown = reading.read_together(asked, now=utcnow(), memory=self._cache.memory)
        pairs = zip(distinct.values(), shown, strict=True)
        answers = {question.key: self._try_to_render(question, of_board) for question, of_board in pairs}
        return [answers[question.key] for question in questions]

    def _try_to_render(self, question: BoardQuestion, shown: ShownBoard | None) -> Answer | None:
        """None for what cannot be answered, so that it fails alone."""
        try:
            return self._render(question, shown)
        except Exception:
            log.exception("a board could not be shown", action="boards.unshown", tenantId=question.board.tenant_id)
            return None

    def _render(self, question: BoardQuestion, shown: ShownBoard | None) -> Answer | None:
        if shown is None:
            return None
        match question.part:
            case Top():
                answer = render_top(question.reader, shown)
            case Around(subject, n):
                if not is_on(shown, subject):  # maybe its page was deleted
                    return None
                answer = render_rank(question.reader, shown, subject, n)
        return answer if self._cache.keep(question.board, question.key, answer) else None

    def _kept(self, reader: Reader, target: str, tags: str | None) -> FastAnswer | None:
        return to_send_if_newest(self._cache.find(answer_key(reader, target)), tags)

    def _top_question(self, actor: Actor, target: str, query: str) -> BoardQuestion | None:
        reader = actor.reader
        top = _plain_top(reader, query)
        if top is None or top[0].is_users or not self._cache.memory.is_trusted():
            return None
        return BoardQuestion(actor.caller, reader, top[0], Top(top[1]), answer_key(reader, target))

    def learn_pages(self, unknown: Iterable[UnknownPage]) -> None:
        """Have the ids of these pages in memory, if they exist."""
        names = [(page.tenant_id, page.external_id) for page in unknown if EXTERNAL_ID.fullmatch(page.external_id)]
        for name, page_id in pages.find_ids(names).items():
            self._cache.memory.page_ids.keep(name, page_id)

    def _rank_question(self, actor: Actor, target: str, query: str) -> BoardQuestion | UnknownPage | None:
        reader = actor.reader
        rank, memory = _plain_rank(reader, query), self._cache.memory
        if rank is None or not memory.is_trusted():
            return None
        board, name, around = rank
        page_id = memory.page_ids.get((reader.tenant_id, name))
        if page_id is None:
            return UnknownPage(reader.tenant_id, name)
        return BoardQuestion(actor.caller, reader, board, Around(page_id, around), answer_key(reader, target))

    def _answer(self, compute: "Compute", reader: Reader, environ: Environ) -> FastAnswer | None:
        key = answer_key(reader, f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}")
        tags = environ.get("HTTP_IF_NONE_MATCH")
        kept = to_send_if_newest(self._cache.find(key), tags)
        if kept is not None:
            return kept
        with self._threads.of(reader.tenant_id, current_caller.get().name):
            answer = compute(reader, key, environ)
        return to_send(answer, tags) if answer is not None else None

    def _compute_top(self, reader: Reader, key: Any, environ: Environ) -> Answer | None:
        top = _plain_top(reader, environ.get("QUERY_STRING", ""))
        if top is None:
            return None
        board, limit = top
        compute = partial(top_answer, reader, board, limit, None, explain=False, memory=self._cache.memory)
        return self._cache.get(board, key, compute, at_least=_version_of_caller(environ))

    def _compute_rank(self, reader: Reader, key: Any, environ: Environ) -> Answer | None:
        rank = _plain_rank(reader, environ.get("QUERY_STRING", ""))
        if rank is None:
            return None
        board, name, around = rank
        compute = partial(page_rank_answer, reader, board, name, around, memory=self._cache.memory)
        return self._cache.get(board, key, compute, at_least=_version_of_caller(environ))

    def _compute_stats(self, reader: Reader, key: Any, environ: Environ) -> Answer | None:
        external_id = environ["PATH_INFO"].split("/")[4]
        return self._cache.get_of_tenant(reader.tenant_id, key, partial(stats_answer, reader, external_id))


# What a caller asks for, by the path with its query, and the query.
FindQuestion = Callable[[Actor, str, str], BoardQuestion | UnknownPage | None]
# How an answer is computed that is not kept: for a reader, under a key, from a request.
Compute = Callable[[Reader, Any, Environ], Answer | None]


def to_send(answer: Answer, tags: str | None) -> FastAnswer:
    """The answer as it is sent to a caller with this `If-None-Match`."""
    return answer.unchanged if conditional.is_one_of(answer, tags) else answer.whole


def to_send_if_newest(answer: Answer | None, tags: str | None) -> FastAnswer | None:
    """None: there is no answer, or the caller has a newer version, so a thread must ask PostgreSQL."""
    return None if answer is None or conditional.is_older(answer, tags) else to_send(answer, tags)


def _version_of_caller(environ: Environ) -> int:
    return conditional.version_in(environ.get("HTTP_IF_NONE_MATCH"))


def _plain_top(reader: Reader, text: str) -> tuple[Board, int] | None:
    """The board and how many rows of it a plain query names; None: the route must read it."""
    query = plain_query(text)
    if query is None or not query.keys() <= {"scope", "window", "metric", "limit"}:
        return None
    limit = _number(query.get("limit"), default=DEFAULT_LIMIT, minimum=1, maximum=MAX_ROWS)
    board = board_for(reader, _board_query(query))
    return (board, limit) if limit is not None else None


def _plain_rank(reader: Reader, text: str) -> tuple[Board, str, int] | None:
    """The board, the page and how many neighbours a plain query names; None: the route must read it."""
    query = plain_query(text)
    if query is None or not query.keys() <= {"scope", "window", "metric", "member", "around"}:
        return None
    around = _number(query.get("around"), default=0, minimum=0, maximum=MAX_AROUND)
    board = board_for(reader, _board_query(query))
    return (board, query["member"], around) if "member" in query and around is not None and not board.is_users else None


def plain_query(text: str) -> Mapping[str, str] | None:
    """The parameters of a query that needs no decoding and is not long; None: the route must read it."""
    return _plain_query(text) if len(text) <= MAX_QUERY_CHARS else None


@lru_cache(maxsize=20_000)
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
