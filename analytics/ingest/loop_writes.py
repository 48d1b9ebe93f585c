"""Writing events on an event loop: what `analytics.ingest.writes` does, over a connection that the loop waits for."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from analytics.boards.ranks import RankQuestion
from analytics.ingest.writes import (
    TenantWrite,
    WriteRequest,
    assign_outcomes,
    by_tenant,
    event_calls,
    rolled_back_on_error,
)
from analytics.scores.new_payments import Call
from analytics.scores.payments import Cashier
from tenants.loop_connection import LoopConnection

# Reads ranks on boards of users; None: Redis does not have the board, or may have an old one.
ReadRanks = Callable[[Sequence[RankQuestion]], Awaitable[Sequence[Sequence[int | None] | None]]]


async def commit_on_loop(requests: Sequence[WriteRequest], connection: LoopConnection) -> list[WriteRequest]:
    """Write requests without claims, in one round trip. As `writes.commit_together`, shared by tenants."""
    writes = by_tenant(requests)
    return assign_outcomes(writes, await connection.run_in_one_trip(event_calls(writes), shared=True))


async def commit_claims_on_loop(
    requests: Sequence[WriteRequest], connection: LoopConnection, read_ranks: ReadRanks
) -> list[WriteRequest]:
    """The same for requests with nothing but claims: two round trips, and the ranks of the new scores in between.

    Left are also claims that only a thread can decide, and all of a tenant whose board Redis does not have,
    or may have as it was before.
    """
    all_claims = [_Claims(write) for write in by_tenant(requests)]
    async with connection.transaction(shared=True) as tx:
        with rolled_back_on_error():
            answers = iter(await tx.run([(one.tenant_id, *call) for one in all_claims for call in one.reads]))
            for one in all_claims:
                one.cashier.decide(*islice(answers, len(one.reads)))
            questions = [one.cashier.ranks_wanted() for one in all_claims]
            for one, question, ranks in zip(all_claims, questions, await read_ranks(questions), strict=True):
                one.prepare(question, ranks)
        recording = [one for one in all_claims if one.record is not None]
        recorded = await tx.commit([(one.tenant_id, *(one.record or ())) for one in recording])
        for one, rows in zip(recording, recorded, strict=True):
            one.is_left = not rows[0].record_payments
    return [request for one in all_claims for request in one.assign_outcomes()]


@dataclass
class _Claims:
    """One tenant's claims in a commit on an event loop."""

    write: TenantWrite
    cashier: Cashier = field(init=False)
    reads: Sequence[Call] = field(init=False)
    # What writes the payments, if there are any.
    record: Call | None = None
    # Whether nothing of them is written, and a thread must decide about them.
    is_left: bool = False

    def __post_init__(self) -> None:
        self.cashier = self.write.cashier()
        self.reads = self.cashier.reads(self.write.room)

    @property
    def tenant_id(self) -> str:
        return self.write.tenant_id

    def prepare(self, question: RankQuestion, ranks: Sequence[int | None] | None) -> None:
        self.is_left = ranks is None and bool(question.asked)
        if not self.is_left:
            self.record = self.cashier.record(ranks or ())

    def assign_outcomes(self) -> list[WriteRequest]:
        """Returns the requests that are left."""
        self.write.count_created(self.cashier.created_users)
        if self.is_left:
            self.write.measure()
            return [*self.write.requests]
        left = self.write.assign_payments(self.cashier.outcomes())
        self.write.measure()
        return left
