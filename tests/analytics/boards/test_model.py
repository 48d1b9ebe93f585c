"""Whatever happens, in whatever order: every board equals a plain model, wherever it is read from."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from analytics import outbox
from analytics.boards import postgres_reads, projection, reading, rebuilding, redis_store, snapshots, weights
from analytics.boards.board_sql import transaction_for
from analytics.boards.board_writes import BoardWrites
from analytics.boards.names import GLOBAL, Board, boards_in
from analytics.boards.reading import ShownBoard, Top
from analytics.boards.rows import Listing
from analytics.ingest import page_writes, writes
from analytics.ingest.visitors import visit_of
from analytics.ingest.writes import EventKind, Item, WriteRequest
from analytics.locks import try_lock_boards
from tenants import redis as tenants_redis
from tenants import settings as tenant_settings
from tenants.db import Query, Tx, tenant_tx, utcnow
from tests.analytics.conftest import somebody_else_writes
from tests.conftest import make_tenant, redis_unavailable

pytestmark = pytest.mark.long

START = datetime(2026, 3, 10, 10, 30, tzinfo=UTC)
SPACES = ["eng", "ops"]
NAMES = ["a", "b", "c"]
USERS = ["u", "v"]
HOURS = {"1d": 24, "7d": 168, "30d": 720}

names, users, spaces = st.sampled_from(NAMES), st.sampled_from(USERS), st.sampled_from(SPACES)
# The window whose boards are checked after a step, if any: checking all of them takes most of the time.
checked = st.none() | st.sampled_from([*HOURS, "all"])


@dataclass
class ModelPage:
    id: int
    space: str
    public: bool
    likes: dict[str, datetime] = field(default_factory=dict)
    views: Counter[datetime] = field(default_factory=Counter)
    visitors: dict[tuple[date, str], datetime] = field(default_factory=dict)

    def value(self, metric: str, window: str, now: datetime, weighed: tuple[float, float]) -> float:
        hour = now.replace(minute=0, second=0, microsecond=0)

        def is_in_window(at: datetime) -> bool:
            if window == "all":
                return True
            at_hour = at.replace(minute=0, second=0, microsecond=0)
            return hour - timedelta(hours=HOURS[window]) < at_hour <= hour

        likes = sum(is_in_window(at) for at in self.likes.values())
        views = sum(n for at, n in self.views.items() if is_in_window(at))
        if metric == "likes":
            return likes
        if metric == "views":
            return views
        if metric == "visitors":
            return sum(is_in_window(at) for at in self.visitors.values())
        return round(weighed[0] * likes + weighed[1] * math.log(1 + views), 6)


class Boards(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.tenant = make_tenant()
        self.now = START
        self.pages: dict[str, ModelPage] = {}
        self.shared = False
        self.weighed = (3.0, 1.0)
        self.put("a", "eng", public=True)
        self.put("b", "ops", public=False)

    # --- what tenants do

    @rule(name=names, space=spaces, public=st.booleans())
    def put(self, name: str, space: str, public: bool) -> None:
        with tenant_tx(self.tenant) as tx:
            saved = page_writes.put(
                tx,
                name,
                space=space,
                title="t",
                url=f"/{name}",
                visibility="public" if public else "private",
                now=self.now,
            )
        known = self.pages.setdefault(name, ModelPage(saved.page.id, space, public))
        known.space, known.public = space, public

    @rule(name=names)
    def delete(self, name: str) -> None:
        if self.pages.pop(name, None) is not None:
            with tenant_tx(self.tenant) as tx:
                page_writes.delete(tx, name)

    @rule(name=names, user=users, liked=st.sampled_from([True, True, False]))
    def like(self, name: str, user: str, liked: bool) -> None:
        self.send(Item(EventKind.LIKE if liked else EventKind.UNLIKE, name, self.now, user=user))
        if name in self.pages:
            likes = self.pages[name].likes
            if not liked:
                likes.pop(user, None)
            else:
                likes.setdefault(user, self.now)

    @rule(
        name=names,
        hours_late=st.sampled_from([0, 1, 22, 23, 166, 718, 719, 800]),
        times=st.integers(1, 3),
        user=st.none() | users,
        beside=st.booleans(),
    )
    def view(self, name: str, hours_late: int, times: int, user: str | None = None, beside: bool = False) -> None:
        """`beside` somebody else who writes to the page, so that it waits to be counted."""
        at = self.now - timedelta(hours=hours_late)
        with somebody_else_writes(self.tenant) if beside else contextlib.nullcontext():
            self.send(*[Item(EventKind.VIEW, name, at, visit=visit_of(user, at, now=self.now))] * times)
        if name in self.pages:
            self.pages[name].views[at] += times
            if user is not None:
                self.pages[name].visitors.setdefault((at.date(), user), at)

    @rule(name=names)
    def view_a_little_ahead(self, name: str) -> None:
        at = self.now + timedelta(minutes=5)
        self.send(Item(EventKind.VIEW, name, at))
        if name in self.pages:
            self.pages[name].views[at] += 1

    @rule(shared=st.booleans())
    def share(self, shared: bool) -> None:
        with tenant_tx(self.tenant) as tx:
            tenant_settings.change(tx, {"share_public_pages": shared}, now=self.now)
            outbox.mark_sharing_stale(tx)
        self.shared = shared

    @rule(likes=st.sampled_from([0.0, 1.0, 2.5]), views=st.sampled_from([0.5, 1.0]))
    def weigh(self, likes: float, views: float) -> None:
        with tenant_tx(self.tenant) as tx:
            weights.add(tx, likes=likes, views=views, effective_from=None, by="test", now=self.now)
        self.weighed = (likes, views)

    # --- what happens to us

    @rule(time=st.sampled_from([timedelta(hours=1), timedelta(hours=26), timedelta(days=8)]), check=checked)
    def time_passes(self, time: timedelta, check: str | None = None) -> None:
        self.now += time
        self.check_boards_of(check)

    @rule()
    def redis_is_emptied(self) -> None:
        client = tenants_redis.boards().redis
        for key in client.scan_iter(match=f"*:{self.tenant}*", count=10_000):
            client.delete(key)

    @rule(check=checked)
    def redis_is_emptied_under_the_projector(self, check: str | None) -> None:
        real = redis_store.write_summaries

        def empty_and_write(*args: Any) -> None:
            self.redis_is_emptied()
            real(*args)

        with patch.object(redis_store, "write_summaries", empty_and_write):
            projection.project_step(self.tenant, now=self.now)
        self.check_boards_of(check)

    @rule()
    def projector_makes_way(self) -> None:
        """After it has filled a row of what Redis has lost."""
        with patch.multiple(rebuilding, MAX_ROWS_PER_QUERY=1, MIN_STEP_S=0.0):
            projection.project_step(self.tenant, now=self.now, is_over=lambda: True)

    @rule(where=st.sampled_from(["before", "within", "after"]), limit=st.sampled_from([1, 5_000]), check=checked)
    def projector_dies(self, where: str, limit: int, check: str | None) -> None:
        with dying(where), contextlib.suppress(Killed):  # where nothing is to be written it lives
            projection.project_step(self.tenant, now=self.now, limit=limit)
        self.check_boards_of(check)

    @rule(name=names, user=users, limit=st.sampled_from([1, 5_000]), check=checked)
    def another_projector_comes_between_plan_and_writing(
        self, name: str, user: str, limit: int, check: str | None
    ) -> None:
        def come_between() -> None:
            self.like(name, user, liked=True)
            projection.project_step(self.tenant, now=self.now)

        with between_plan_and_writing(come_between):
            projection.project_step(self.tenant, now=self.now, limit=limit)
        self.check_boards_of(check)

    @rule()
    def projector_finds_no_redis(self) -> None:
        with redis_unavailable():
            projection.project_all(self.tenant, now=lambda: self.now)
        for board in [*self.global_boards(), *self.own_boards()]:
            assert self.read_postgres(board) == self.expected(board), f"{board} in PostgreSQL, without Redis"

    @rule(limit=st.sampled_from([1, 3, 5_000]))
    def projector_runs_once(self, limit: int) -> None:
        projection.project_step(self.tenant, now=self.now, limit=limit)

    # --- what must be true

    @rule()
    def every_board_is_right_after_a_projection(self) -> None:
        self.boards_are_right_after_a_projection({*HOURS, "all"})

    def boards_are_right_after_a_projection(self, windows: set[str]) -> None:
        projection.project_all(self.tenant, now=lambda: self.now, limit=4)
        for board in self.global_boards():
            if board.window in windows:
                self.is_right(board)
        with tenant_tx(self.tenant):  # one for all of them: there are dozens
            for board in self.own_boards():
                if board.window in windows:
                    self.is_right(board)

    def is_right(self, board: Board) -> None:
        expected = self.expected(board)
        shown = reading.read(board, Top(1000), now=self.now)
        assert shown.source == "redis" or not expected
        assert self.rows(board, shown) == expected, f"{board} in Redis"
        if shown.source != "postgres":
            assert self.read_postgres(board) == expected, f"{board} in PostgreSQL"

    @precondition(lambda self: bool(self.pages))
    @rule()
    def snapshots_are_right_after_their_refresh(self) -> None:
        projection.project_all(self.tenant, now=lambda: self.now)
        snapshots.refresh(self.tenant, now=self.now)
        with tenant_tx(self.tenant) as tx:
            for board in self.own_boards():
                kept = snapshots.live(tx, board, now=self.now)
                rows = [(row.member, row.value) for row in kept.rows] if kept is not None else []
                assert rows == self.expected(board), f"{board} in its snapshot"

    # --- how

    def check_boards_of(self, window: str | None) -> None:
        if window is not None:
            self.boards_are_right_after_a_projection({window})

    def send(self, *items: Item) -> None:
        with tenant_tx(self.tenant) as tx:
            writes.apply(tx, WriteRequest(self.tenant, list(items), self.now))

    def global_boards(self) -> list[Board]:
        return list(boards_in(self.tenant, GLOBAL))

    def own_boards(self) -> list[Board]:
        scopes = ["tenant", "public"]
        for space in {page.space for page in self.pages.values()}:
            scopes += [f"space:{space}", f"public:{space}"]
        return [board for scope in scopes for board in boards_in(self.tenant, scope)]

    def expected(self, board: Board) -> list[tuple[str, float]]:
        kind, _, space = board.scope.partition(":")
        found = [
            (str(page.id), page.value(board.metric.name, board.window, self.now, self.weighed))
            for page in self.pages.values()
            if (not space or page.space == space)
            and (kind not in {"public", GLOBAL} or page.public)
            and (kind != GLOBAL or self.shared)
        ]
        return sorted([row for row in found if row[1]], key=lambda row: (row[1], row[0]), reverse=True)

    def rows(self, board: Board, listing: Listing | ShownBoard) -> list[tuple[str, float]]:
        own = {str(page.id) for page in self.pages.values()}
        return [(row.subject, row.value) for row in listing.rows if board.scope != GLOBAL or row.subject in own]

    def read_postgres(self, board: Board) -> list[tuple[str, float]]:
        with transaction_for(board) as tx:
            return self.rows(board, postgres_reads.read_top(tx, board, limit=1000, after=None, now=self.now))


class Killed(Exception):
    pass


@contextmanager
def between_plan_and_writing(come_between: Callable[[], None]) -> Iterator[None]:
    """Something happens after a projector has committed its plan, before it has the lock again."""
    calls: list[str] = []

    def lock(tx: Tx, tenant_id: str, *then: Query) -> list[list[Any]]:
        calls.append(tenant_id)
        if len(calls) == 2:
            with ThreadPoolExecutor(1) as another:
                another.submit(come_between).result()
        return try_lock_boards(tx, tenant_id, *then)

    with patch.object(projection, "try_lock_boards", lock):
        yield


@contextmanager
def dying(where: str) -> Iterator[None]:
    """The projector is killed before it writes to Redis, half way through, or just before its commit."""

    def die(*_args: Any, **_more: Any) -> Any:
        raise Killed

    real: Callable[..., Any] = redis_store.write

    def write_half(redis: Any, writes: BoardWrites, versions: Any) -> Any:
        half = BoardWrites(
            values=dict(list(writes.values.items())[::2]), removed=dict(list(writes.removed.items())[::2])
        )
        real(redis, half, {board: versions[board] for board in half.boards()})
        raise Killed

    match where:
        case "before":
            with patch.object(redis_store, "write", die):
                yield
        case "within":
            with patch.object(redis_store, "write", write_half):
                yield
        case _:
            with patch.object(outbox, "delete", die):
                yield


def test_every_board_equals_the_model_whatever_happens(connected: None) -> None:
    rebuilding.rebuild_global(now=utcnow(), only_missing=False)
    run_state_machine_as_test(
        Boards,
        settings=settings(
            max_examples=4,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_what_left_a_window_leaves_its_boards_also_after_days_without_a_worker(connected: None) -> None:
    machine = Boards()
    machine.begin()
    machine.view("a", hours_late=0, times=3)
    machine.like("b", "u", liked=True)
    machine.every_board_is_right_after_a_projection()
    for time in (timedelta(hours=23), timedelta(hours=1), timedelta(days=5, hours=23), timedelta(days=30)):
        machine.time_passes(time)
        machine.every_board_is_right_after_a_projection()
    assert machine.expected(boards_in(machine.tenant, "tenant")[0]) == []


@pytest.mark.parametrize("step", [timedelta(), timedelta(hours=1)])
def test_a_plan_is_not_carried_out_after_another_projector_was_there(connected: None, step: timedelta) -> None:
    machine = Boards()
    machine.begin()
    machine.like("a", "u", liked=True)
    machine.every_board_is_right_after_a_projection()
    machine.view("a", hours_late=0, times=1)
    machine.now += step
    machine.another_projector_comes_between_plan_and_writing("a", "v", 5_000, check=None)
    machine.every_board_is_right_after_a_projection()


@pytest.mark.parametrize("where", ["before", "within", "after"])
def test_what_a_dead_projector_wrote_and_is_true_no_more_is_written_over(connected: None, where: str) -> None:
    machine = Boards()
    machine.begin()
    machine.like("a", "u", liked=True)
    machine.every_board_is_right_after_a_projection()
    machine.like("a", "v", liked=True)
    machine.put("a", "ops", public=True)
    machine.projector_dies(where, 5_000, check=None)
    machine.like("a", "v", liked=False)
    machine.put("a", "eng", public=True)
    machine.every_board_is_right_after_a_projection()


def test_a_redis_emptied_under_the_projector_never_leaves_a_board_of_a_few_rows(connected: None) -> None:
    machine = Boards()
    machine.begin()
    machine.like("a", "u", liked=True)
    machine.like("b", "u", liked=True)
    machine.every_board_is_right_after_a_projection()
    machine.like("a", "v", liked=True)
    machine.redis_is_emptied_under_the_projector(check=None)
    machine.every_board_is_right_after_a_projection()


def test_what_moved_while_redis_was_away_is_where_it_belongs_when_it_is_back(connected: None) -> None:
    machine = Boards()
    machine.begin()
    machine.like("a", "u", liked=True)
    machine.every_board_is_right_after_a_projection()
    machine.put("a", "ops", public=False)
    machine.projector_finds_no_redis()
    machine.put("a", "eng", public=True)
    machine.like("a", "u", liked=False)
    machine.projector_finds_no_redis()
    machine.like("a", "v", liked=True)
    machine.projector_runs_once(1)
    machine.every_board_is_right_after_a_projection()
