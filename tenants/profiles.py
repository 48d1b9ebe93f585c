"""What others see of a user besides the username: a display name and a picture. Pure."""

import re
import unicodedata
from urllib.parse import urlsplit

MAX_NAME_CHARS = 100
MAX_URL_CHARS = 2048
# Control characters, and those that break lines or turn the direction of what follows.
NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# Letters and signs that nobody sees, besides those of Unicode's category of format characters.
INVISIBLE = frozenset("\u115f\u1160\u2800\u3164\uffa0")
URL = re.compile(r"https?://[\x21-\x5b\x5d-\x7e]+")  # without a backslash: browsers read it as a slash

# What is right, for error messages.
DISPLAY_NAME = f"1 to {MAX_NAME_CHARS} characters, at least one of them visible, without control characters"
PICTURE_URL = f"an address that starts with https:// or http://, of at most {MAX_URL_CHARS} characters"

# The fields whose change boards follow.
SHOWN = frozenset({"username", "display_name", "avatar_url"})


def is_display_name(name: str) -> bool:
    """Whether it may be shown as somebody's name. It has no white space around it."""
    if not 1 <= len(name) <= MAX_NAME_CHARS or name != name.strip() or NOT_IN_NAMES.search(name) is not None:
        return False
    return any(unicodedata.category(one) not in {"Cf", "Zs", "Mn"} and one not in INVISIBLE for one in name)


def is_picture_url(url: str) -> bool:
    """Whether a picture may be at this address: http or https, never a script."""
    if len(url) > MAX_URL_CHARS or URL.fullmatch(url) is None:
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
