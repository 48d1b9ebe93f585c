"""Keccak-256, the hash of Ethereum's addresses.

It is the function that was submitted to the SHA-3 competition. The standard (and `hashlib.sha3_256`) pads its input
differently, so that the digests differ. No package that we depend on has it; an address is hashed once when it is set,
so plain Python is quick enough.
"""

_RATE_BYTES = 136
_MASK = 2**64 - 1
_KECCAK_PADDING = 0x01


def keccak_256(data: bytes) -> bytes:
    return _digest(data, _KECCAK_PADDING)


def _digest(data: bytes, first_of_padding: int) -> bytes:
    lanes = [0] * 25
    padding = bytearray(_RATE_BYTES - len(data) % _RATE_BYTES)
    padding[0] ^= first_of_padding
    padding[-1] ^= 0x80
    padded = data + padding
    for start in range(0, len(padded), _RATE_BYTES):
        block = padded[start : start + _RATE_BYTES]
        for lane in range(_RATE_BYTES // 8):
            lanes[lane] ^= int.from_bytes(block[lane * 8 : lane * 8 + 8], "little")
        lanes = _permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes[:4])


def _permute(lanes: list[int]) -> list[int]:
    """Keccak-f[1600]: 24 rounds of theta, rho with pi, chi and iota, by their names in the specification."""
    for constant in _ROUND_CONSTANTS:
        parities = [lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20] for x in range(5)]
        mixed = [parities[(x - 1) % 5] ^ _rotate(parities[(x + 1) % 5], 1) for x in range(5)]
        moved = [0] * 25
        for place in range(25):
            x, y = place % 5, place // 5
            moved[y + 5 * ((2 * x + 3 * y) % 5)] = _rotate(lanes[place] ^ mixed[x], _ROTATIONS[place])
        lanes = [
            moved[place] ^ (~moved[place - place % 5 + (place + 1) % 5] & moved[place - place % 5 + (place + 2) % 5])
            for place in range(25)
        ]
        lanes[0] ^= constant
    return lanes


def _rotate(lane: int, by: int) -> int:
    return (lane << by | lane >> (64 - by)) & _MASK


def _rotations() -> list[int]:
    """How far rho rotates each lane: the triangular numbers, along the way that pi takes."""
    rotations, x, y = [0] * 25, 1, 0
    for step in range(24):
        rotations[x + 5 * y] = (step + 1) * (step + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    return rotations


def _round_constants() -> list[int]:
    """What iota adds in each round: bits of a linear feedback shift register at the places 2^j - 1."""
    constants, register = [], 1
    for _ in range(24):
        constant = 0
        for j in range(7):
            if register & 1:
                constant |= 1 << (2**j - 1)
            register <<= 1
            if register & 0x100:
                register ^= 0x171
        constants.append(constant)
    return constants


_ROTATIONS = _rotations()
_ROUND_CONSTANTS = _round_constants()
