"""What can go wrong in the domain, by family.

Each module defines its own errors, as subclasses with a stable `code`; `app/http/errors.py` alone decides which HTTP
status a family has.
"""

from collections.abc import Mapping, Sequence
from typing import Self

FieldErrors = Mapping[str, Sequence[str]]


def first_messages(errors: FieldErrors) -> str:
    """The first message of each field, as one line."""
    return "; ".join(f"{name}: {messages[0]}" for name, messages in errors.items())


class DomainError(Exception):
    """A refused request, with a reason that the caller can act on."""

    code: str = "error"
    title: str = "The request was refused"

    def __init__(
        self,
        detail: str | None = None,
        *,
        errors: FieldErrors | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.detail = detail or self.title
        self.errors = errors
        self.retry_after_s = retry_after_s
        super().__init__(self.detail)

    @classmethod
    def field(cls, name: str, message: str, *, detail: str | None = None) -> Self:
        """One field is not valid. The detail repeats its message unless one is given."""
        return cls(detail or f"{name}: {message}", errors={name: [message]})

    @classmethod
    def fields(cls, messages: Mapping[str, str | Sequence[str]]) -> Self:
        """Several fields are not valid, each with one or more messages."""
        errors = {name: [texts] if isinstance(texts, str) else texts for name, texts in messages.items()}
        return cls(first_messages(errors), errors=errors)


class Malformed(DomainError):
    """The bytes cannot be parsed as their content type."""

    code = "malformed"
    title = "The request could not be read"


class Unauthenticated(DomainError):
    code = "unauthenticated"
    title = "Credentials are missing or not valid"


class Forbidden(DomainError):
    code = "forbidden"
    title = "These credentials may not do this"


class NotFound(DomainError):
    """Does not exist, or belongs to another tenant: callers must not be able to distinguish the two."""

    code = "not_found"
    title = "Not found"


class Conflict(DomainError):
    code = "conflict"
    title = "The current state does not allow this"


class Stale(DomainError):
    code = "stale"
    title = "It has changed since you read it"


class PreconditionRequired(DomainError):
    code = "precondition_required"
    title = "Say which version this is for: If-Match"


class TooLarge(DomainError):
    code = "too_large"
    title = "The request is too large"


class WrongType(DomainError):
    code = "unsupported_media_type"
    title = "This content type is not accepted here"


class Invalid(DomainError):
    code = "invalid"
    title = "Some fields are not valid"


class Limited(DomainError):
    code = "rate_limited"
    title = "Too many requests"


class Unavailable(DomainError):
    """Not now, but a retry may succeed."""

    code = "unavailable"
    title = "Temporarily not available"
