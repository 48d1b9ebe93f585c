"""What can go wrong in the domain, by family.

A rule names its own error where it happens, as a subclass with a stable `code`; `app/errors.py` alone
decides which HTTP status a family has.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

FieldErrors = Mapping[str, Sequence[str]]


def first_messages(errors: FieldErrors) -> str:
    """The first message of each field, as one line."""
    return "; ".join(f"{name}: {messages[0]}" for name, messages in errors.items())


class DomainError(Exception):
    """A refusal that a caller can understand and act on."""

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "The request was refused"

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
        """One field is refused. The detail repeats its message, unless there is a better sentence for it."""
        return cls(detail or f"{name}: {message}", errors={name: [message]})

    @classmethod
    def fields(cls, messages: Mapping[str, str | Sequence[str]]) -> Self:
        """Several fields are refused, each with one or more messages."""
        errors = {name: [said] if isinstance(said, str) else said for name, said in messages.items()}
        return cls(first_messages(errors), errors=errors)


class Malformed(DomainError):
    """The bytes cannot be read as what they claim to be."""

    code = "malformed"
    title = "The request could not be read"


class Unauthenticated(DomainError):
    code = "unauthenticated"
    title = "Credentials are missing or not valid"


class Forbidden(DomainError):
    code = "forbidden"
    title = "These credentials may not do this"


class NotFound(DomainError):
    """Not there, or another tenant's: the two must look the same."""

    code = "not_found"
    title = "Not found"


class Conflict(DomainError):
    code = "conflict"
    title = "The current state does not allow this"


class Stale(DomainError):
    code = "stale"
    title = "It has changed since you read it"


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
