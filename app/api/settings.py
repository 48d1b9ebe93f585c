"""The settings of a tenant."""

from dataclasses import asdict
from typing import Any, ClassVar

import marshmallow as ma

from analytics import outbox
from analytics.ingest.pages import Visibility
from app.api.blueprint import ORIGIN, Blueprint, Schema, matching
from app.http.conditional import conditional, expected_version
from app.http.rights import May, requires
from app.http.transactions import actor_tx, audit, idempotent
from tenants import settings as tenant_settings
from tenants.db import utcnow
from tenants.security_events import SecurityEvent
from tenants.settings import (
    MAX_ORIGINS,
    MAX_PICTURE_HOSTS,
    MAX_PREFIX_CHARS,
    MAX_SPACE_RULES,
    RANGES,
    SPACE_KEY,
    TenantSettings,
    VisiblePages,
)

blueprint = Blueprint("settings", __name__, url_prefix="/api/v1", description="Settings of the tenant")


class NumbersOut(Schema):
    """Settings whose ranges are those of `tenants.settings`."""

    # The name of this object within the settings, followed by a dot; empty for the settings themselves.
    path: ClassVar[str]

    def on_bind_field(self, field_name: str, field_obj: ma.fields.Field[Any]) -> None:
        bounds = RANGES.get(f"{self.path}{field_name}")
        if bounds is not None:
            field_obj.metadata = {**field_obj.metadata, "minimum": bounds[0], "maximum": bounds[1]}


class LimitsOut(NumbersOut):
    path = "limits."

    score_updates_per_minute = ma.fields.Integer(metadata={"description": "of each user's own claims"})
    app_actions_per_minute = ma.fields.Integer(metadata={"description": "actions in batches, of all apps together"})
    beacons_per_minute = ma.fields.Integer(metadata={"description": "accepted ones of one address"})
    visitor_beacons_per_minute = ma.fields.Integer(metadata={"description": "accepted ones of one visitor"})
    visitor_views_per_day = ma.fields.Integer(metadata={"description": "of one visitor and page (UTC)"})
    visitors_per_address = ma.fields.Integer(metadata={"description": "of one page in a day (UTC)"})
    score_spike_per_minute = ma.fields.Integer()
    live_connections = ma.fields.Integer()
    auto_pages_per_day = ma.fields.Integer(metadata={"description": "pages that make themselves (UTC)"})
    logins_per_minute = ma.fields.Integer(
        metadata={"description": "attempts at all users' passwords from devices that are new to them"}
    )


class IntegrityOut(NumbersOut):
    path = "integrity."

    points_per_hour = ma.fields.Integer()
    suspend_automatically = ma.fields.Boolean()


class RetentionOut(NumbersOut):
    path = "retention."

    action_events_days = ma.fields.Integer()
    hourly_buckets_days = ma.fields.Integer()
    event_ids_days = ma.fields.Integer()
    snapshots_days = ma.fields.Integer()


class QuestSettingsOut(NumbersOut):
    path = "quests."

    members_create = ma.fields.Boolean(metadata={"description": "whether members may create quests, or admins only"})
    quests_per_day = ma.fields.Integer(metadata={"description": "what one user may offer in a day (UTC)"})
    xp_per_day = ma.fields.Integer(metadata={"description": "what one user may offer in a day (UTC)"})
    open_claims = ma.fields.Integer(metadata={"description": "claimed and not submitted yet, by one user"})
    claim_days = ma.fields.Integer(metadata={"description": "after which a claim is released"})
    attestations_per_day = ma.fields.Integer(metadata={"description": "by one user (UTC)"})
    attestations_required = ma.fields.Integer(metadata={"description": "the least that a quest may ask for"})
    min_rating = ma.fields.Integer(metadata={"description": "the least average rating that a quest may ask for"})
    witness_above_xp = ma.fields.Integer(
        metadata={"description": "above this, one attester must be another than the creator"}
    )
    require_if_match = ma.fields.Boolean(metadata={"description": "whether every step needs If-Match"})


class SpaceRuleOut(Schema):
    prefix = ma.fields.String(metadata={"description": "of the address's path, such as /docs/"})
    space = ma.fields.String()
    visibility = ma.fields.String(metadata={"enum": [choice.value for choice in Visibility]})


class SettingsOut(NumbersOut):
    path = ""

    signup_open = ma.fields.Boolean(metadata={"description": "whether anybody may register as a member"})
    signup_sees = ma.fields.Enum(
        VisiblePages, by_value=True, metadata={"description": "which pages self-registered members see"}
    )
    session_idle_days = ma.fields.Integer(metadata={"description": "a session that was not used so long ends"})
    admin_session_idle_days = ma.fields.Integer(metadata={"description": "the same for sessions of admins"})
    share_public_pages = ma.fields.Boolean()
    public_scoreboard = ma.fields.Boolean()
    public_names = ma.fields.Boolean(
        metadata={"description": "whether public boards show the names and pictures of users"}
    )
    allowed_origins = ma.fields.List(ma.fields.String(metadata=ORIGIN), metadata={"maxItems": MAX_ORIGINS})
    picture_hosts = ma.fields.List(
        ma.fields.String(metadata={"description": "such as pictures.example"}),
        metadata={
            "description": "where members may have their own pictures; admins and apps choose freely",
            "maxItems": MAX_PICTURE_HOSTS,
        },
    )
    auto_pages = ma.fields.Boolean(
        metadata={"description": "whether the first view of an unknown address makes its page, with any key"}
    )
    space_rules = ma.fields.List(
        ma.fields.Nested(SpaceRuleOut),
        metadata={
            "description": "the space of pages that make themselves; the first rule that matches decides",
            "maxItems": MAX_SPACE_RULES,
        },
    )
    limits = ma.fields.Nested(LimitsOut)
    integrity = ma.fields.Nested(IntegrityOut)
    retention = ma.fields.Nested(RetentionOut)
    quests_enabled = ma.fields.Boolean()
    quests = ma.fields.Nested(QuestSettingsOut)


class LimitsIn(LimitsOut):
    """Any of them."""


class IntegrityIn(IntegrityOut):
    """Any of them."""


class RetentionIn(RetentionOut):
    """Any of them."""


class QuestSettingsIn(QuestSettingsOut):
    """Any of them."""


class SpaceRuleIn(SpaceRuleOut):
    prefix = ma.fields.String(required=True, metadata={"pattern": "^/", "maxLength": MAX_PREFIX_CHARS})
    space = ma.fields.String(required=True, metadata=matching(SPACE_KEY))


class SettingsIn(SettingsOut):
    """Any part of the settings. `tenants.settings` validates them, since it defines the ranges."""

    space_rules = ma.fields.List(ma.fields.Nested(SpaceRuleIn), metadata={"maxItems": MAX_SPACE_RULES})
    limits = ma.fields.Nested(LimitsIn)
    integrity = ma.fields.Nested(IntegrityIn)
    retention = ma.fields.Nested(RetentionIn)
    quests = ma.fields.Nested(QuestSettingsIn)

    def load(self, data: Any, **_options: Any) -> Any:
        return data


@blueprint.get("/settings")
@requires(May.MANAGE_SETTINGS)
@conditional()
@blueprint.response(200, SettingsOut)
def read_settings() -> Any:
    """All settings, with their defaults. `ETag` is their version."""
    with actor_tx() as tx:
        return _answer(*tenant_settings.read(tx))


@blueprint.patch("/settings")
@requires(May.MANAGE_SETTINGS)
@idempotent
@conditional("If-Match")
@blueprint.arguments(SettingsIn)
@blueprint.response(200, SettingsOut)
def change_settings(changes: dict[str, Any]) -> Any:
    """Change some settings; the others stay. With `If-Match`, only if nobody else has changed them."""
    with actor_tx() as tx:
        changed = tenant_settings.change(tx, changes, now=utcnow(), expected_version=expected_version())
        if changed.after.share_public_pages != changed.before.share_public_pages:
            outbox.mark_sharing_stale(tx)
    audit(SecurityEvent.SETTINGS_CHANGED, changed=changes)
    return _answer(changed.after, changed.version)


def _answer(settings: TenantSettings, version: int) -> tuple[dict[str, Any], int, dict[str, str]]:
    return asdict(settings), 200, {"ETag": f'"{version}"'}
