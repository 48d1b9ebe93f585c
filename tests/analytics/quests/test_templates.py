"""Templates and categories."""

from uuid import uuid4

import pytest

from analytics.quests import templates
from analytics.quests.templates import CategoryNotFound, TemplateNotFound, TooManyCategories, TooManyTemplates
from tenants.db import utcnow
from tests.analytics.quests.questing import OFFER, World

FIELDS = {**OFFER, "tags": ["docs"]}


def test_templates_are_created_changed_listed_and_removed(world: World) -> None:
    with world.tx() as tx:
        first, second = (templates.create(tx, FIELDS, now=utcnow()) for _ in range(2))
        templates.change(tx, first.id, {**FIELDS, "title": "Another title"}, now=utcnow())
        newest = templates.list_(tx, after=None, limit=1)
        assert [one.id for one in newest] == [second.id]
        rest = templates.list_(tx, after=(second.created_at, second.id), limit=5)
        assert [(one.id, one.title) for one in rest] == [(first.id, "Another title")]
        templates.remove(tx, first.id)
        for missing in (first.id, uuid4()):
            with pytest.raises(TemplateNotFound):
                templates.get(tx, missing)
        with pytest.raises(TemplateNotFound):
            templates.remove(tx, first.id)


def test_categories_count_the_quests_with_their_tag(world: World) -> None:
    creator = world.person()
    for _ in range(2):
        world.create(creator, tags=["docs"])
    with world.tx() as tx:
        templates.promote(tx, "docs", "Documents", None, now=utcnow())
        templates.promote(tx, "docs", "Documentation", "Write it", now=utcnow())
        templates.promote(tx, "code", "Code", None, now=utcnow())
        assert templates.categories(tx) == [
            {"tag": "code", "name": "Code", "description": None, "quests": 0},
            {"tag": "docs", "name": "Documentation", "description": "Write it", "quests": 2},
        ]
        templates.demote(tx, "docs")
        with pytest.raises(CategoryNotFound):
            templates.demote(tx, "docs")


def test_both_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MAX_TEMPLATES", 1)
    monkeypatch.setattr(templates, "MAX_CATEGORIES", 1)
    with world.tx() as tx:
        templates.create(tx, FIELDS, now=utcnow())
        templates.promote(tx, "docs", "Docs", None, now=utcnow())
        templates.promote(tx, "docs", "Docs again", None, now=utcnow())
        with pytest.raises(TooManyTemplates):
            templates.create(tx, FIELDS, now=utcnow())
        with pytest.raises(TooManyCategories):
            templates.promote(tx, "code", "Code", None, now=utcnow())
