"""What a row of a board shows of its page or user.

Page summaries are kept in Redis beside the boards, so that reading a board needs no PostgreSQL; what is missing there
is read from PostgreSQL. Users are read from PostgreSQL: an erased user is gone from every answer at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from analytics.boards.board_sql import may_show, scope_parameters, transaction_for
from analytics.boards.names import Board
from tenants import redis
from tenants.db import array
from tenants.redis import RedisUnavailable, key

FIELDS = ("external_id", "title", "url", "space", "tenant", "public")

if TYPE_CHECKING:
    from analytics.boards.kept import BoardMemory


@dataclass(frozen=True)
class Summary:
    """What a row shows of its page."""

    external_id: str
    title: str
    url: str
    space: str
    tenant_id: str
    is_public: bool

    def fields(self) -> dict[str, str]:
        """As a hash in Redis."""
        public = "1" if self.is_public else "0"
        values = (self.external_id, self.title, self.url, self.space, self.tenant_id, public)
        return dict(zip(FIELDS, values, strict=True))


def summary_key(tenant_id: str, member: str) -> str:
    return key("pgs", tenant_id, member)


def of_subjects(
    board: Board, subjects: Sequence[str], *, trust_redis: bool = True, memory: "BoardMemory | None" = None
) -> dict[str, Mapping[str, Any]]:
    """What to show of these pages or users, by id; those that may not be shown are missing."""
    if not subjects:
        return {}
    if board.is_users:
        return _users(board, subjects)
    return _pages(board, subjects, trust_redis=trust_redis, memory=memory)


def _users(board: Board, user_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    with transaction_for(board) as tx:
        rows = tx.execute(
            text("""
                SELECT id, username, external_id, display_name, avatar_url FROM users
                WHERE tenant_id = :tenant AND id = ANY(CAST(:users AS uuid[])) AND erased_at IS NULL
            """),
            {"tenant": board.tenant_id, "users": array(user_ids)},
        )
        return {
            str(row.id): {
                "id": str(row.id),
                "username": row.username,
                "external_id": row.external_id,
                "display_name": row.display_name,
                "avatar_url": row.avatar_url,
            }
            for row in rows
        }


def _pages(
    board: Board, page_ids: Sequence[str], *, trust_redis: bool, memory: "BoardMemory | None"
) -> dict[str, Mapping[str, Any]]:
    """From Redis, and from PostgreSQL what Redis does not have.

    A page may have become private since its row was read: a public board shows nothing of it. A snapshot may be old,
    so for its rows a public board asks PostgreSQL only.
    """
    found = _from_memory(board, page_ids, memory) if memory is not None else {}
    if len(found) == len(page_ids) and not board.is_public:
        return found
    if trust_redis or not board.is_public:
        unknown = [(board.tenant_id, page_id) for page_id in page_ids if page_id not in found]
        found |= {page_id: fields for (_, page_id), fields in _from_redis(unknown, memory).items()}
    if board.is_public:
        found = {page_id: fields for page_id, fields in found.items() if fields.get("public") == "1"}
    missing = [page_id for page_id in page_ids if page_id not in found]
    return {**found, **_from_postgres(board, missing)} if missing else found


def _from_memory(board: Board, page_ids: Sequence[str], memory: "BoardMemory") -> dict[str, Mapping[str, Any]]:
    kept = memory.summaries.get_all((board.tenant_id, page_id) for page_id in page_ids)
    return {page_id: fields for page_id, fields in zip(page_ids, kept, strict=True) if fields is not None}


# Whose boards show a page, and the page's id.
Shown = tuple[str, str]


def fetch(shown: Iterable[Shown], memory: "BoardMemory") -> None:
    """Have the summaries of these pages in memory, as far as Redis has them: in one round trip."""
    distinct = list(dict.fromkeys(shown))
    kept = memory.summaries.get_all(distinct)
    _from_redis([page for page, fields in zip(distinct, kept, strict=True) if fields is None], memory)


def _from_redis(shown: Sequence[Shown], memory: "BoardMemory | None") -> dict[Shown, Mapping[str, Any]]:
    if not shown:
        return {}
    drops = memory.drops if memory is not None else 0
    try:
        answers = redis.boards().read(*(("HMGET", summary_key(*page), *FIELDS) for page in shown))
    except RedisUnavailable:
        return {}
    found: dict[Shown, Mapping[str, Any]] = {
        page: {name: value.decode() for name, value in zip(FIELDS, values, strict=True)}
        for page, values in zip(shown, answers, strict=True)
        if values is not None and None not in values
    }
    if memory is not None and memory.drops == drops:  # nothing changed since they were read
        for (tenant_id, page_id), fields in found.items():
            memory.keep_page(tenant_id, page_id, fields)
    return found


def _from_postgres(board: Board, page_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    with transaction_for(board) as tx:
        rows = tx.execute(
            text(f"""
                SELECT p.id, p.tenant_id, p.external_id, p.title, p.url, p.space_key, p.visibility FROM pages p
                WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {may_show(board)}
            """),  # noqa: S608  our own names
            {**scope_parameters(board), "ids": array(page_ids)},
        )
        return {
            str(row.id): Summary(
                row.external_id, row.title, row.url, row.space_key, row.tenant_id, row.visibility == "public"
            ).fields()
            for row in rows
        }
