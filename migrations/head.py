"""Which migration is the newest, read from the file names: cheap enough for every health check."""

from functools import cache
from pathlib import Path


@cache
def head_revision() -> str:
    return max(path.name.split("_")[0] for path in Path(__file__).with_name("versions").glob("[0-9]*_*.py"))
