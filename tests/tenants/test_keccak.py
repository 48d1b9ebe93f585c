"""Keccak-256: the published digests, and the permutation of the standard."""

import hashlib

import pytest

from tenants import keccak
from tenants.keccak import keccak_256


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
        (b"abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
        (
            b"The quick brown fox jumps over the lazy dog",
            "4d741b6f1eb29cb2a9b9911c82f56fa8d73b04959d3d9d222895df6c0b28aa15",
        ),
        (b"transfer(address,uint256)", "a9059cbb2ab09eb219583f4a59a5d0623ade346d962bcd4e46b11da047c9049b"),
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "45d3b367a6904e6e8d502ee04999a7c27647f91fa845d456525fd352ae3d7371",
        ),
    ],
)
def test_the_digest_is_the_published_one(data: bytes, digest: str) -> None:
    assert keccak_256(data).hex() == digest


def test_but_for_the_padding_it_is_the_standards_function_at_every_length() -> None:
    for length in range(290):
        data = bytes(range(256))[:length] + b"x" * (length - 256)
        assert keccak._digest(data, 0x06) == hashlib.sha3_256(data).digest(), length
