"""How hard a password is to guess: zxcvbn's lists and score, for passwords that are being set.

A login does not ask for it: a password that was set before stays valid until it is changed. The time of a score grows
with the password's length and with the digits and signs that may stand for letters (`4` for `a`), each of which doubles
what is tried. So a bounded beginning is scored: a password is at least as hard to guess as its beginning.
"""

import re
import threading
from collections.abc import Iterable

from tenants.errors import Invalid

# Of 4: "safely unguessable", 10^8 guesses or more.
MIN_SCORE = 3
MAX_SCORED_CHARS = 72
# With more look-alikes than these only so many characters are scored: 72 with 20 of them take seconds.
MAX_LOOK_ALIKES = 6
MAX_SCORED_CHARS_WITH_LOOK_ALIKES = 16
LOOK_ALIKES = frozenset("0123456789@$!|+%()[]{}<>")
MAX_ABOUT_WORDS = 20
MAX_WORD_CHARS = 64
# Shorter words help nobody to guess, and would make good passwords bad ones.
MIN_WORD_CHARS = 3
MAX_WARNING_CHARS = 160
_WORD = re.compile(r"[^\W_]+")
# The library keeps the words of the caller in a table of its module.
_scoring = threading.Lock()


def require_strong(password: str, about: Iterable[str | None], *, field: str) -> None:
    """Raise Invalid if the password is easily guessed by who knows these words about its user. Takes up to 0.1 s."""
    # Its lists take 14 MB and 50 ms: most processes never set a password.
    from zxcvbn import zxcvbn
    from zxcvbn.matching import RANKED_DICTIONARIES

    with _scoring:
        try:
            scored = zxcvbn(_scored_part(password), user_inputs=_words(about))
        finally:
            RANKED_DICTIONARIES.pop("user_inputs", None)
    if scored["score"] < MIN_SCORE:
        raise Invalid.field(field, _reason(scored["feedback"]))


def _scored_part(password: str) -> str:
    part = password[:MAX_SCORED_CHARS]
    if len(LOOK_ALIKES.intersection(part)) > MAX_LOOK_ALIKES:
        return part[:MAX_SCORED_CHARS_WITH_LOOK_ALIKES]
    return part


def _words(about: Iterable[str | None]) -> list[str]:
    """Each text and its parts: whoever guesses tries `grace.hopper`, `grace` and `hopper`."""
    texts = ["plaudit"]
    for text in about:
        short = (text or "").split("@")[0][:MAX_WORD_CHARS].lower()
        texts += [short, *_WORD.findall(short)]
    return [word for word in dict.fromkeys(texts) if len(word) >= MIN_WORD_CHARS][:MAX_ABOUT_WORDS]


def _reason(feedback: dict[str, object]) -> str:
    """Why it is too weak and how to choose a better one, in the words of the library where it has some."""
    why = str(feedback.get("warning") or "It is too easy to guess.")[:MAX_WARNING_CHARS]
    how = "Choose several uncommon words, or let a password manager generate one."
    return f"{why} {how} Your name and the names of this service do not count."
