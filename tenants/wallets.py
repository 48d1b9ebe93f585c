"""Addresses of wallets (Ethereum): 20 bytes in hex, whose upper and lower case is a checksum (EIP-55)."""

import re

from tenants.keccak import keccak_256

_ADDRESS = re.compile(r"0x[0-9A-Fa-f]{40}")


def checksummed(address: str) -> str | None:
    """The address as EIP-55 writes it; None if it is none, or its checksum is wrong. One case has no checksum."""
    if _ADDRESS.fullmatch(address) is None:
        return None
    digits = address[2:]
    digest = keccak_256(digits.lower().encode()).hex()
    right = "0x" + "".join(
        digit.upper() if int(nibble, 16) >= 8 else digit.lower() for digit, nibble in zip(digits, digest, strict=False)
    )
    return right if address == right or digits in {digits.lower(), digits.upper()} else None
