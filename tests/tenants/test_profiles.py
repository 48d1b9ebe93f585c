"""Names and pictures: plain text, and addresses that a browser loads as a picture and never runs."""

import pytest

from tenants.profiles import is_display_name, is_picture_url


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        ("Ada Lovelace", True),
        ("李小龍 👩‍💻", True),
        ("<b>Ada</b>", True),  # text, whatever it looks like
        ("x" * 100, True),
        ("x" * 101, False),
        ("", False),
        (" Ada", False),
        ("Ada\n", False),
        ("A\x00da", False),
        ("A\x85da", False),
        ("Ada\u202etxt.exe", False),
        ("Ada\u2028", False),
        ("Ada\u200f", False),
        ("\u200b", False),  # nobody would see it
        ("\u3164", False),
    ],
)
def test_a_name_is_short_plain_text(name: str, is_right: bool) -> None:
    assert is_display_name(name) is is_right


@pytest.mark.parametrize(
    ("url", "is_right"),
    [
        ("https://pictures.example/a.png?s=64", True),
        ("http://pictures.example:8080/a", True),
        ("https://p.example/" + "x" * 2030, True),
        ("https://p.example/" + "x" * 2031, False),
        ("javascript:alert(1)", False),
        ("JAVASCRIPT:alert(1)", False),
        ("data:image/png;base64,AAAA", False),
        ("//pictures.example/a.png", False),
        ("/a.png", False),
        ("https:///a.png", False),
        ("https://pictures.example\\@evil.example/", False),
        ("https://pictures.example/a b", False),
        ("https://pictures.example:99999/", False),
        ("https://[::1/", False),
        ("https://p.example/\n", False),
    ],
)
def test_a_picture_is_at_an_http_address(url: str, is_right: bool) -> None:
    assert is_picture_url(url) is is_right
