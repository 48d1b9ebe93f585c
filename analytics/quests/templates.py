"""Templates for quests, and categories: tags that an admin has promoted."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import delete, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert

from analytics.quests.tables import QuestCategory, QuestTemplate
from tenants.db import Tx
from tenants.errors import Conflict, NotFound

MAX_TEMPLATES = 1_000
MAX_CATEGORIES = 100
# Quests of a category are counted up to this.
MAX_COUNTED = 10_000


class TemplateNotFound(NotFound):
    title = "There is no such template"


class CategoryNotFound(NotFound):
    title = "There is no such category"


class TooManyTemplates(Conflict):
    code = "too_many_templates"
    title = f"A tenant has at most {MAX_TEMPLATES} templates"


class TooManyCategories(Conflict):
    code = "too_many_categories"
    title = f"A tenant has at most {MAX_CATEGORIES} categories"


def list_(tx: Tx, *, after: tuple[datetime, UUID] | None, limit: int) -> Sequence[QuestTemplate]:
    """Newest first."""
    query = select(QuestTemplate).order_by(QuestTemplate.created_at.desc(), QuestTemplate.id.desc()).limit(limit)
    if after is not None:
        query = query.where(tuple_(QuestTemplate.created_at, QuestTemplate.id) < after)
    return tx.scalars(query).all()


def get(tx: Tx, template_id: UUID) -> QuestTemplate:
    template = tx.get(QuestTemplate, (tx.tenant, template_id))
    if template is None:
        raise TemplateNotFound
    return template


def create(tx: Tx, fields: Mapping[str, Any], *, now: datetime) -> QuestTemplate:
    _lock(tx)
    if len(tx.scalars(select(QuestTemplate.id).limit(MAX_TEMPLATES)).all()) >= MAX_TEMPLATES:
        raise TooManyTemplates
    template = QuestTemplate(tenant_id=tx.tenant, id=uuid4(), created_at=now, updated_at=now, **fields)
    tx.add(template)
    tx.flush()
    return template


def change(tx: Tx, template_id: UUID, fields: Mapping[str, Any], *, now: datetime) -> QuestTemplate:
    template = get(tx, template_id)
    for name, value in {**fields, "updated_at": now}.items():
        setattr(template, name, value)
    tx.flush()
    return template


def remove(tx: Tx, template_id: UUID) -> None:
    if tx.scalar(delete(QuestTemplate).where(QuestTemplate.id == template_id).returning(QuestTemplate.id)) is None:
        raise TemplateNotFound


def categories(tx: Tx) -> list[dict[str, Any]]:
    """All, by name, with how many quests have the tag."""
    rows = tx.run(_CATEGORIES, {"tenant": tx.tenant, "limit": MAX_COUNTED})
    return [{"tag": row.tag, "name": row.name, "description": row.description, "quests": row.quests} for row in rows]


def promote(tx: Tx, tag: str, name: str, description: str | None, *, now: datetime) -> None:
    """Make a tag a category, or change the category."""
    _lock(tx)
    known = set(tx.scalars(select(QuestCategory.tag)))
    if tag not in known and len(known) >= MAX_CATEGORIES:
        raise TooManyCategories
    values = {"name": name, "description": description}
    tx.execute(
        insert(QuestCategory)
        .values(tenant_id=tx.tenant, tag=tag, created_at=now, **values)
        .on_conflict_do_update(index_elements=["tenant_id", "tag"], set_=values)
    )


def demote(tx: Tx, tag: str) -> None:
    if tx.scalar(delete(QuestCategory).where(QuestCategory.tag == tag).returning(QuestCategory.tag)) is None:
        raise CategoryNotFound


def _lock(tx: Tx) -> None:
    """Nobody else adds one while they are counted."""
    tx.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('templates:' || :t, 0))"), {"t": tx.tenant})


_CATEGORIES = text("""
    SELECT c.tag, c.name, c.description, n.quests FROM quest_categories c
    CROSS JOIN LATERAL (
        SELECT count(*) AS quests FROM (
            SELECT FROM quest_tags t WHERE t.tenant_id = :tenant AND t.tag = c.tag LIMIT :limit) counted
    ) n
    WHERE c.tenant_id = :tenant ORDER BY lower(c.name), c.tag
""")
