"""Templates for quests, and categories: tags that an admin has promoted."""

from datetime import datetime
from typing import Any
from uuid import UUID

from flask.typing import ResponseReturnValue

from analytics.quests import templates
from analytics.quests.texts import clean, clean_all
from app.api.blueprint import Blueprint, SliceIn
from app.api.quest_schemas import CategoriesOut, CategoryIn, TemplateIn, TemplateOut, TemplatesOut
from app.http import paging
from app.http.rights import May, requires
from app.http.transactions import actor_tx, audit, idempotent
from tenants.db import utcnow
from tenants.errors import Invalid
from tenants.security_events import SecurityEvent

blueprint = Blueprint("quest-templates", __name__, url_prefix="/api/v1", description="Templates and categories")

MAX_TAG_CHARS = 32


@blueprint.get("/quest-templates")
@requires(May.READ_QUESTS)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, TemplatesOut)
def list_templates(query: dict[str, Any]) -> Any:
    """Newest first."""
    asked = paging.slice_of(query, created_at=datetime, id=UUID)
    with actor_tx() as tx:
        rows = templates.list_(tx, after=asked.after, limit=asked.fetch)
    return asked.answer(rows)


@blueprint.post("/quest-templates")
@requires(May.MANAGE_QUESTS)
@idempotent
@blueprint.arguments(TemplateIn)
@blueprint.response(201, TemplateOut)
def create_template(body: dict[str, Any]) -> Any:
    """A title, description, rewards and tags to create quests from."""
    with actor_tx() as tx:
        template = templates.create(tx, {**body, "tags": clean_all(body["tags"])}, now=utcnow())
    audit(SecurityEvent.QUEST_TEMPLATE_CREATED, template=str(template.id))
    return template


@blueprint.get("/quest-templates/<uuid:template_id>")
@requires(May.READ_QUESTS)
@blueprint.response(200, TemplateOut)
def get_template(template_id: UUID) -> Any:
    """One template."""
    with actor_tx() as tx:
        return templates.get(tx, template_id)


@blueprint.put("/quest-templates/<uuid:template_id>")
@requires(May.MANAGE_QUESTS)
@blueprint.arguments(TemplateIn)
@blueprint.response(200, TemplateOut)
def change_template(body: dict[str, Any], template_id: UUID) -> Any:
    """Change it. Quests that were created from it stay as they are."""
    with actor_tx() as tx:
        template = templates.change(tx, template_id, {**body, "tags": clean_all(body["tags"])}, now=utcnow())
    audit(SecurityEvent.QUEST_TEMPLATE_CHANGED, template=str(template_id))
    return template


@blueprint.delete("/quest-templates/<uuid:template_id>")
@requires(May.MANAGE_QUESTS)
@blueprint.response(204)
def delete_template(template_id: UUID) -> None:
    """Quests that were created from it stay."""
    with actor_tx() as tx:
        templates.remove(tx, template_id)
    audit(SecurityEvent.QUEST_TEMPLATE_DELETED, template=str(template_id))


@blueprint.get("/quest-categories")
@requires(May.READ_QUESTS)
@blueprint.response(200, CategoriesOut)
def list_categories() -> Any:
    """The tags that an admin has promoted, with how many quests have them."""
    with actor_tx() as tx:
        return {"items": templates.categories(tx)}


@blueprint.put("/quest-categories/<tag>")
@requires(May.MANAGE_QUESTS)
@blueprint.arguments(CategoryIn)
@blueprint.response(204)
def promote_tag(body: dict[str, Any], tag: str) -> ResponseReturnValue:
    """Make a tag a category, with a name that people read."""
    if tag != clean(tag) or not 1 <= len(tag) <= MAX_TAG_CHARS:
        raise Invalid.field("tag", f"1 to {MAX_TAG_CHARS} characters, as quests have it")
    with actor_tx() as tx:
        templates.promote(tx, tag, body["name"], body["description"] or None, now=utcnow())
    audit(SecurityEvent.QUEST_CATEGORY_SET, tag=tag)
    return "", 204


@blueprint.delete("/quest-categories/<tag>")
@requires(May.MANAGE_QUESTS)
@blueprint.response(204)
def demote_tag(tag: str) -> None:
    """The tag is a category no longer. Its quests keep it."""
    with actor_tx() as tx:
        templates.demote(tx, tag)
    audit(SecurityEvent.QUEST_CATEGORY_DELETED, tag=tag)
