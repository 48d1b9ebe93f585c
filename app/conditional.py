"""`If-Match`: change a thing only if it is still as it was read. Versions are numbers, ETags their text."""

import re

from flask import request

from tenants.errors import Stale


def expected_version() -> int | None:
    """The version the caller read; None when they do not mind. A tag that is none of ours matches nothing."""
    given = request.headers.get("If-Match")
    if given is None or given.strip() == "*":
        return None
    match = re.fullmatch(r'\s*(?:W/)?"(\d{1,18})"\s*', given)
    if match is None:
        raise Stale("If-Match must be an ETag as it was given")
    return int(match[1])
