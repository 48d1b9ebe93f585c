"""A follower by itself: which frames it has yet to be sent, and in which order."""

from collections.abc import Callable
from itertools import count

import orjson
import pytest

from analytics.boards.names import Board
from analytics.metrics import LIKES
from analytics.windows import Window
from app.live import server
from app.live.follower import FIRST_RETRY_S, MAX_FOLLOWED_BOARDS, MAX_RETRY_S, Followed, Follower, TooManyFollowed
from app.live.hub import Hub
from app.live.tops import Top
from tenants.errors import Unavailable
from tests.app.live.test_hub import BOARD, KEY, follower_of, hub, sent_frames

__all__ = ["hub"]


def types(follower: Follower) -> list[str]:
    return [orjson.loads(frame)["type"] for frame in follower.frames()]


def test_the_first_frame_confirms_the_subscription_with_the_newest_version(hub: Hub) -> None:
    follower = follower_of(hub)
    follower.follow(BOARD)
    follower.mark_due(KEY, 3, "invalidated")
    assert sent_frames(follower) == [("subscribed", 3)]
    follower.mark_due(KEY, 4, "invalidated")
    assert sent_frames(follower) == [("invalidated", 4)]
    assert sent_frames(follower) == [], "each is sent once"


def test_a_quiet_stream_renews_the_id_with_which_it_is_continued(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "COMMENT_EVERY_S", 0.01)
    monkeypatch.setattr(server, "RENEW_TOKEN_EVERY_S", 0.01)
    follower, tokens = follower_of(hub), (f"token{number}" for number in count())
    follower.follow(BOARD)
    follower.mark_due(KEY, 3, "invalidated")
    stream = server._events(follower, lambda: next(tokens))
    assert b"\nid: 1.token0\ndata: {" in next(stream)
    renewed = next(stream)
    assert renewed.startswith(b": still here\nid: 1.token")
    assert renewed.endswith(b"\n\n")
    assert b"data" not in renewed, "it is no event"
    assert b"token0" not in renewed


def test_frames_are_numbered_one_after_the_other(hub: Hub) -> None:
    follower = follower_of(hub)
    for version in (1, 2):
        follower.mark_due(KEY, version, "invalidated")
        (frame,) = map(orjson.loads, follower.frames())
        assert (frame["seq"], frame["v"], frame["topic"]) == (version, 1, BOARD.topic)


def test_of_a_board_that_is_no_longer_followed_only_that_is_sent(hub: Hub) -> None:
    follower = follower_of(hub)
    follower.mark_due(KEY, 1, "invalidated")
    follower.unfollow(BOARD)
    assert types(follower) == ["unsubscribed"]
    hub.on_invalidation({"tenant": BOARD.tenant_id, "versions": {BOARD.topic: 2}})
    assert types(follower) == []


def test_a_connection_follows_a_bounded_number_of_boards(hub: Hub) -> None:
    follower = follower_of(hub)
    boards = [Board(BOARD.tenant_id, f"space:s{number}", Window.WEEK, LIKES) for number in range(MAX_FOLLOWED_BOARDS)]
    for board in boards[1:]:
        follower.follow(board)
    with pytest.raises(TooManyFollowed):
        follower.follow(boards[0])
    follower.follow(boards[1], top=3)
    follower.unfollow(boards[2])
    follower.follow(boards[0])
    assert len(follower.follows) == MAX_FOLLOWED_BOARDS


def test_whatever_is_due_wakes_the_writer(hub: Hub) -> None:
    follower = follower_of(hub)
    happenings: list[Callable[[], None]] = [
        lambda: follower.mark_due(KEY, 1, "invalidated"),
        lambda: follower.unfollow(BOARD),
        lambda: follower.end(1001),
    ]
    for happen in happenings:
        follower.wake.clear()
        happen()
        assert follower.wake.is_set()


def test_rows_that_cannot_be_read_are_tried_again_ever_later(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    tops: list[Top | None] = [None] * 8
    delays: list[float] = []

    def get(*_args: object, **_options: object) -> Top:
        top = tops.pop(0)
        if top is None:
            raise Unavailable
        return top

    monkeypatch.setattr(hub.tops, "get", get)
    monkeypatch.setattr(hub, "retry_later", lambda *_args, in_s: delays.append(in_s))
    follower = follower_of(hub)
    follower.follows[KEY] = Followed(BOARD, 3)
    for _ in range(8):
        follower.mark_due(KEY, 5, "invalidated")
        assert types(follower) == []
    assert (delays[:3], delays[-1]) == ([FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S], MAX_RETRY_S)
    older, newest = (Top(version, [], orjson.Fragment(b"[]")) for version in (4, 5))
    tops += [older, newest]
    sent = []
    for _ in range(2):
        follower.mark_due(KEY, 5, "invalidated")
        sent += sent_frames(follower)
    assert sent == [("top", 4), ("top", 5)], "rows that are not the newest are sent, and then read again"
    assert len(delays) == 9
    follower.mark_due(KEY, 5, "invalidated")
    assert types(follower) == []


def test_a_follower_whose_credential_may_be_revoked_is_sent_nothing_until_it_is_checked(hub: Hub) -> None:
    follower = follower_of(hub)
    follower.mark_due(KEY, 1, "invalidated")
    follower.require_check()
    assert sent_frames(follower) == []
    assert follower.check()
    assert follower.wake.is_set(), "its writer goes on"
    assert sent_frames(follower) == [("invalidated", 1)]


def test_what_changes_during_a_check_needs_another_one(hub: Hub) -> None:
    follower = follower_of(hub)

    def is_valid(_: Follower) -> bool:
        follower.require_check()  # just after the credential was read
        return True

    follower.is_valid = is_valid
    follower.require_check()
    assert follower.check()
    assert follower.is_unchecked


def test_no_frame_is_older_than_one_before(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may be, where the newest cannot be read: then they are read again later."""
    tops = [Top(version, [{"rank": version}], orjson.Fragment(b"[]")) for version in (5, 4, 6)]
    delays: list[float] = []
    monkeypatch.setattr(hub.tops, "get", lambda *_args: tops.pop(0))
    monkeypatch.setattr(hub, "retry_later", lambda *_args, in_s: delays.append(in_s))
    follower = follower_of(hub)
    follower.follows[KEY] = Followed(BOARD, 3)
    follower.mark_due(KEY, 5, "subscribed")
    assert sent_frames(follower) == [("subscribed", 5), ("top", 5)]
    follower.mark_due(KEY, 6, "invalidated")
    assert (sent_frames(follower), len(delays)) == ([], 1)
    follower.mark_due(KEY, 6, "invalidated")
    assert sent_frames(follower) == [("top", 6)]


def test_who_subscribes_again_is_sent_nothing_older(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = follower_of(hub)
    follower.mark_due(KEY, 7, "invalidated")
    assert sent_frames(follower) == [("invalidated", 7)]
    monkeypatch.setattr(hub, "version_of", lambda _: 6)
    follower.follow(BOARD)
    assert sent_frames(follower) == [("subscribed", 7)]


def test_what_was_lost_with_a_server_is_replaced_by_what_there_is(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that only the lost server knew is empty, and its version is never reached again."""
    tops = [Top(5, [{"rank": 1}], orjson.Fragment(b"[{}]")), Top(0, [], orjson.Fragment(b"[]"), is_newest=True)]
    monkeypatch.setattr(hub.tops, "get", lambda *_args: tops.pop(0))
    follower = follower_of(hub)
    follower.follows[KEY] = Followed(BOARD, 3)
    hub.notify_followers(KEY, 5)
    assert sent_frames(follower) == [("top", 5)]
    hub.on_invalidation({"tenant": BOARD.tenant_id, "versions": {}, "resync": True})
    resync, top = map(orjson.loads, follower.frames())
    assert (resync["type"], resync["version"], top["type"], top["version"], top["items"]) == ("resync", 5, "top", 5, [])


def test_after_a_resync_no_rows_have_a_newer_version_than_their_own(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to Redis was lost and no commit: then older rows are outdated, and are read again."""
    tops = [Top(version, [{"rank": version}], orjson.Fragment(b"[{}]")) for version in (5, 4, 5)]
    delays: list[float] = []
    monkeypatch.setattr(hub.tops, "get", lambda *_args: tops.pop(0))
    monkeypatch.setattr(hub, "retry_later", lambda *_args, in_s: delays.append(in_s))
    follower = follower_of(hub)
    follower.follows[KEY] = Followed(BOARD, 3)
    hub.notify_followers(KEY, 5)
    assert sent_frames(follower) == [("top", 5)]
    hub.notify_followers(KEY, 5, "resync")
    assert (sent_frames(follower), len(delays)) == ([("resync", 5)], 1)
    follower.mark_due(KEY, 5, "invalidated")
    assert sent_frames(follower) == [("top", 5)]
