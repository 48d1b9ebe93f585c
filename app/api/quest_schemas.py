"""What requests and answers about quests look like."""

from datetime import datetime, timedelta
from typing import Any

import marshmallow as ma

from analytics.quests.creating import MAX_ATTESTATIONS_REQUIRED
from analytics.quests.rewards import PaymentState, RetryState, Reward
from analytics.quests.states import Status
from analytics.quests.texts import clean, clean_lines
from app.api.blueprint import Schema, SliceIn
from tenants import users
from tenants.db import utcnow

MAX_AHEAD = timedelta(days=10 * 365)


class Line(ma.fields.String):
    """One line of plain text, so long once control and bidi characters are gone."""

    _clean = staticmethod(clean)

    def __init__(self, minimum: int, maximum: int, **options: Any) -> None:
        metadata = {"minLength": minimum, "maxLength": maximum, **options.pop("metadata", {})}
        super().__init__(metadata=metadata, **options)
        self._length = ma.validate.Length(minimum, maximum)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        cleaned = self._clean(str(super()._deserialize(value, attr, data, **kwargs)))
        return str(self._length(cleaned))


class Lines(Line):
    """Several lines of it."""

    _clean = staticmethod(clean_lines)


class Future(ma.fields.AwareDateTime):
    """A time that calendars know in every time zone."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> datetime:
        at: datetime = super()._deserialize(value, attr, data, **kwargs)
        if at > utcnow() + MAX_AHEAD:
            raise ma.ValidationError(f"must be within {MAX_AHEAD.days // 365} years")
        return at


class OfferIn(Schema):
    """What a quest or a template offers."""

    title = Line(3, 100)
    description = Lines(10, 1000)
    reward_xp = ma.fields.Integer(strict=True, validate=ma.validate.Range(10, 10_000))
    reward_reputation = ma.fields.Integer(strict=True, validate=ma.validate.Range(1, 100))
    tags = ma.fields.List(Line(1, 32), validate=ma.validate.Length(max=10))


class ForUserIn(Schema):
    user = ma.fields.String(
        validate=ma.validate.Regexp(users.EXTERNAL_ID),
        metadata={"description": "for a client: your own id of the user who does this; created on first sight"},
    )


class QuestIn(OfferIn, ForUserIn):
    requirements = ma.fields.List(Line(1, 200), validate=ma.validate.Length(max=10), load_default=list)
    expires_at = Future(allow_none=True, load_default=None)
    attestations_required = ma.fields.Integer(strict=True, validate=ma.validate.Range(1, MAX_ATTESTATIONS_REQUIRED))
    min_rating = ma.fields.Integer(strict=True, validate=ma.validate.Range(1, 5))
    template = ma.fields.UUID(metadata={"description": "whatever is not sent is taken from it"})


class SubmissionIn(ForUserIn):
    submission = Lines(1, 5000, required=True)


class AttestationIn(ForUserIn):
    rating = ma.fields.Integer(required=True, strict=True, validate=ma.validate.Range(1, 5))
    comments = Lines(0, 1000)
    signature = ma.fields.String(
        validate=[ma.validate.Length(max=200), ma.validate.Regexp(r"[^\x00]*\Z")],
        metadata={"description": "stored as it is sent; nobody verifies it"},
    )


class DisputeIn(ForUserIn):
    reason = Lines(10, 1000, required=True)


class ReasonIn(ForUserIn):
    reason = Lines(0, 1000)


class ResolutionIn(ForUserIn):
    to = ma.fields.String(required=True, validate=ma.validate.OneOf([Status.COMPLETE, Status.OPEN, Status.CANCELLED]))
    reason = Lines(1, 1000, required=True)
    expires_at = Future(metadata={"description": "of the new round, when it is opened again"})


class PersonOut(Schema):
    id = ma.fields.UUID()
    username = ma.fields.String(allow_none=True)
    display_name = ma.fields.String(allow_none=True)
    avatar_url = ma.fields.String(allow_none=True)
    external_id = ma.fields.String(allow_none=True)


class QuestBriefOut(Schema):
    id = ma.fields.UUID(required=True)
    status = ma.fields.String(required=True, metadata={"enum": [status.value for status in Status]})
    version = ma.fields.Integer(required=True)
    round = ma.fields.Integer()
    title = ma.fields.String()
    description = ma.fields.String()
    tags = ma.fields.List(ma.fields.String())
    requirements = ma.fields.List(ma.fields.String())
    reward_xp = ma.fields.Integer()
    reward_reputation = ma.fields.Integer()
    attestations_required = ma.fields.Integer()
    min_rating = ma.fields.Integer(metadata={"description": "the least average rating that completes it"})
    creator = ma.fields.Nested(PersonOut, allow_none=True)
    performer = ma.fields.Nested(PersonOut, allow_none=True)
    created_at = ma.fields.AwareDateTime()
    updated_at = ma.fields.AwareDateTime()
    claimed_at = ma.fields.AwareDateTime(allow_none=True)
    submitted_at = ma.fields.AwareDateTime(allow_none=True)
    completed_at = ma.fields.AwareDateTime(allow_none=True)
    expires_at = ma.fields.AwareDateTime(allow_none=True)


class AttestationOut(Schema):
    attester = ma.fields.Nested(PersonOut, allow_none=True)
    attester_username = ma.fields.String(allow_none=True)
    rating = ma.fields.Integer()
    comments = ma.fields.String(allow_none=True)
    signature = ma.fields.String(allow_none=True)
    signature_verified = ma.fields.Boolean()
    on_chain = ma.fields.Boolean()
    timestamp = ma.fields.AwareDateTime()


class RewardOut(Schema):
    type = ma.fields.String(metadata={"enum": [reward.value for reward in Reward]})
    amount = ma.fields.Integer()
    status = ma.fields.String(
        allow_none=True,
        metadata={
            "enum": [*(state.value for state in PaymentState), None],
            "description": "null before the quest is COMPLETE",
        },
    )


class StepOut(Schema):
    step = ma.fields.String()
    from_ = ma.fields.String(attribute="from", data_key="from", allow_none=True)
    to = ma.fields.String()
    version = ma.fields.Integer()
    at = ma.fields.AwareDateTime()
    by = ma.fields.Nested(PersonOut, allow_none=True)
    reason = ma.fields.String(allow_none=True)


class QuestOut(QuestBriefOut):
    submission = ma.fields.String(
        allow_none=True,
        metadata={"description": "while it is reviewed, for everybody; then for those who have to do with it"},
    )
    attestations = ma.fields.List(ma.fields.Nested(AttestationOut))
    rewards = ma.fields.List(ma.fields.Nested(RewardOut))
    history = ma.fields.List(ma.fields.Nested(StepOut))


class QuestsIn(SliceIn):
    status = ma.fields.String(validate=ma.validate.OneOf([status.value for status in Status]))
    tag = ma.fields.String(validate=ma.validate.Length(1, 32))
    creator = ma.fields.String(metadata={"description": "our id of a user, ext:<external_id>, or me"})
    performer = ma.fields.String(metadata={"description": "the same; by the last change"})
    to_attest = ma.fields.String(metadata={"description": "what this user may attest: me, or for clients another"})


class UsersQuestsIn(SliceIn):
    role = ma.fields.String(validate=ma.validate.OneOf(["created", "performed"]), load_default="created")


class QuestsOut(Schema):
    items = ma.fields.List(ma.fields.Nested(QuestBriefOut))
    next_cursor = ma.fields.String(allow_none=True)


class FailedRewardsIn(SliceIn):
    status = ma.fields.String(validate=ma.validate.OneOf([state.value for state in RetryState]))


class FailedRewardOut(Schema):
    id = ma.fields.UUID(required=True)
    quest_id = ma.fields.UUID()
    user_id = ma.fields.UUID()
    reward_type = ma.fields.String(metadata={"enum": [reward.value for reward in Reward]})
    amount = ma.fields.Integer()
    reason = ma.fields.String()
    error_details = ma.fields.Dict(keys=ma.fields.String())
    status = ma.fields.String(metadata={"enum": [state.value for state in RetryState]})
    attempt_count = ma.fields.Integer()
    created_at = ma.fields.AwareDateTime()
    last_attempt_at = ma.fields.AwareDateTime()
    next_attempt_at = ma.fields.AwareDateTime()
    processed_at = ma.fields.AwareDateTime(allow_none=True)
    processed_by = ma.fields.String(allow_none=True)


class FailedRewardsOut(Schema):
    items = ma.fields.List(ma.fields.Nested(FailedRewardOut))
    next_cursor = ma.fields.String(allow_none=True)


class TemplateIn(Schema):
    title = Line(3, 100, required=True)
    description = Lines(10, 1000, required=True)
    reward_xp = ma.fields.Integer(required=True, strict=True, validate=ma.validate.Range(10, 10_000))
    reward_reputation = ma.fields.Integer(required=True, strict=True, validate=ma.validate.Range(1, 100))
    tags = ma.fields.List(Line(1, 32), validate=ma.validate.Length(max=10), load_default=list)


class TemplateOut(Schema):
    id = ma.fields.UUID(required=True)
    title = ma.fields.String()
    description = ma.fields.String()
    reward_xp = ma.fields.Integer()
    reward_reputation = ma.fields.Integer()
    tags = ma.fields.List(ma.fields.String())
    created_at = ma.fields.AwareDateTime()
    updated_at = ma.fields.AwareDateTime()


class TemplatesOut(Schema):
    items = ma.fields.List(ma.fields.Nested(TemplateOut))
    next_cursor = ma.fields.String(allow_none=True)


class CategoryIn(Schema):
    name = Line(1, 100, required=True)
    description = Lines(0, 1000, load_default=None, allow_none=True)


class CategoryOut(Schema):
    tag = ma.fields.String(required=True)
    name = ma.fields.String()
    description = ma.fields.String(allow_none=True)
    quests = ma.fields.Integer(metadata={"description": "how many quests have the tag"})


class CategoriesOut(Schema):
    items = ma.fields.List(ma.fields.Nested(CategoryOut))
