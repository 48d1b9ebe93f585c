"""Addresses of wallets: what EIP-55 accepts, and how it writes them."""

import pytest

from tenants.wallets import checksummed

# The examples of EIP-55.
ADDRESSES = [
    "0x52908400098527886E0F7030069857D2E4169EE7",
    "0xde709f2102306220921060314715629080e2fb77",
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
    "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_accepted_in_one_case_or_with_its_checksum_and_written_with_it(address: str) -> None:
    digits = address[2:]
    assert {checksummed(given) for given in (address, f"0x{digits.lower()}", f"0x{digits.upper()}")} == {address}
    other_case = [
        f"0x{digits[:at]}{digits[at].swapcase()}{digits[at + 1 :]}" for at in range(40) if digits[at].isalpha()
    ]
    wrong = [given for given in other_case if given[2:] not in {digits.lower(), digits.upper()}]
    assert wrong
    assert {checksummed(given) for given in wrong} == {None}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "0x" + "0" * 39,
        "0x" + "0" * 41,
        "0X" + "0" * 40,
        "0x" + "g" * 40,
        "0x" + "0" * 40 + "\n",
        "0x" + "٣" * 40,
    ],
)
def test_anything_else_is_no_address(text: str) -> None:
    assert checksummed(text) is None
