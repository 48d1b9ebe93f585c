"""Every result and every refused claim has one reason."""

import pytest

from analytics.ingest.reasons import MAX_DETAIL_CHARS, Reason, Refused, Result, reason_of
from analytics.scores.actions import AlreadyDone, DailyCapReached, ImpossibleTime, PayloadDiffers
from analytics.scores.catalog import UnknownAction
from tenants.errors import DomainError


def test_only_what_is_written_or_known_has_no_reason() -> None:
    assert {result for result in Result if result.reason is None} == {Result.ACCEPTED, Result.DUPLICATE}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImpossibleTime(), Reason.TOO_OLD),
        (UnknownAction("fly"), Reason.UNKNOWN_ACTION),
        (PayloadDiffers(), Reason.INVALID),
        (AlreadyDone(), Reason.LIMITED),
        (DailyCapReached(), Reason.LIMITED),
    ],
)
def test_a_refused_claim_has_a_reason(error: DomainError, reason: Reason) -> None:
    assert reason_of(error) is reason


def test_the_detail_of_a_refusal_is_short() -> None:
    assert len(Refused(Reason.INVALID, "x" * 10_000).detail) == MAX_DETAIL_CHARS
