"""Our regular expressions as OpenAPI has them: in the syntax of ECMAScript, and with the ends that they match to."""

import re

# What Python writes otherwise, or has besides.
_ESCAPES = {r"\A": "^", r"\Z": "$"}
_DIFFERENT = re.compile(r"\\.|\(\?P<|\(\?>|[*+?}]\+")


def ecma(pattern: str) -> str:
    """The pattern without what only Python knows. A possessive quantifier matches at most what the plain one does."""
    return _DIFFERENT.sub(_translate, pattern)


def _translate(found: "re.Match[str]") -> str:
    text = found[0]
    if text.startswith("\\"):
        return _ESCAPES.get(text, text)
    if text.startswith("("):
        return "(?<" if text == "(?P<" else "(?:"
    return text[0]


def whole(pattern: str) -> str:
    """For text that it must match from its start to its end (`fullmatch`)."""
    return start(pattern) + "$"


def start(pattern: str) -> str:
    """For text that it must match from its start (`match`)."""
    translated = ecma(pattern)
    return f"^(?:{translated})" if "|" in translated else f"^{translated}"
