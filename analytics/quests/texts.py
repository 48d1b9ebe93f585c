"""What people write in quests: stored and shown as plain text. Pure."""

import unicodedata
from collections.abc import Iterable

# Characters that change the direction of the text around them: what is shown would not be what is stored.
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

# Invisible, but words and emoji are spelt with them.
JOINERS = frozenset("\u200c\u200d")


def clean(text: str) -> str:
    """One line, without control, bidi and other invisible characters."""
    return " ".join("".join(map(_shown, text)).split())


def clean_lines(text: str) -> str:
    """The same, but lines stay lines."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join("".join(map(_shown, line)).rstrip() for line in lines).strip()


def clean_all(texts: Iterable[str]) -> list[str]:
    """Each once, in their order."""
    return list(dict.fromkeys(map(clean, texts)))


def _shown(character: str) -> str:
    if character == "\t":
        return " "
    is_hidden = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Cn"} and character not in JOINERS
    return "" if is_hidden or character in BIDI else character
