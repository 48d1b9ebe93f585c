"""Who gets an address, when several pages are written at once: judged by what is there when all is done (pure)."""

from collections.abc import Iterable, Mapping


def refused_moves(
    wanted: Mapping[str, str], current: Mapping[str, str], holders: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """The pages that may not have the address they want, each with a page that has it when all others are moved.

    `wanted` and `current`: a page's address, by its external id; a new page has no current one. `holders`: address and
    page, the oldest first, of who is at a wanted address now: pages of `current`, and the oldest other one. Of
    several pages that want an address, the first one gets it. A refused page stays where it is, so whoever wanted to go
    there is refused too. A page that keeps its address never is.
    """
    moving: dict[str, list[str]] = {}
    for page, address in wanted.items():
        if current.get(page) != address:
            moving.setdefault(address, []).append(page)
    movers = {page for pages in moving.values() for page in pages}
    staying: dict[str, str] = {}
    for address, page in holders:
        if page not in movers:
            staying.setdefault(address, page)

    refused: list[str] = []
    unjudged = list(moving)
    while unjudged:
        address = unjudged.pop()
        admitted = [] if address in staying else moving[address][:1]
        turned_away = moving[address][len(admitted) :]
        moving[address] = admitted
        refused += turned_away
        for page in turned_away:
            if page in current:
                staying.setdefault(current[page], page)
                unjudged += [current[page]] if current[page] in moving else []
    return {page: staying.get(wanted[page]) or moving[wanted[page]][0] for page in refused}
