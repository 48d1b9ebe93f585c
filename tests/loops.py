"""Coroutines of tests, on the event loop that the service uses."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result], *, within_s: float = 30) -> Result:
    """Its result. In a thread of its own: Playwright keeps a loop running in the main one."""

    def run_here() -> Result:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(asyncio.wait_for(coroutine, within_s))

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run_here).result()
