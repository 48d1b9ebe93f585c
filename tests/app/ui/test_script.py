"""plaudit.js as it is served: small, for any site, in every way that a page can load it."""

import gzip
from pathlib import Path

from flask.testing import FlaskClient

from app.ui import script
from app.ui.script import strip_comments

MAX_GZIPPED_BYTES = 2_000
SOURCE = Path(script.__file__).parent / "static" / "plaudit.js"


def test_any_site_may_load_it_with_cors_and_keep_it_for_an_hour(client: FlaskClient) -> None:
    answer = client.get("/plaudit.js", headers={"Origin": "https://wiki.example"})
    assert answer.content_type == "text/javascript; charset=utf-8"
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
    assert answer.headers["Cache-Control"] == "public, max-age=3600"
    # A proxy may give the answer of a request without an origin to one with it.
    assert client.get("/plaudit.js").headers["Access-Control-Allow-Origin"] == "*"
    unchanged = client.get("/plaudit.js", headers={"If-None-Match": answer.headers["ETag"]})
    assert (unchanged.status_code, unchanged.data) == (304, b"")
    assert unchanged.headers["Access-Control-Allow-Origin"] == "*"


def test_it_takes_less_than_two_kilobytes(client: FlaskClient) -> None:
    plain, zipped = client.get("/plaudit.js"), client.get("/plaudit.js", headers={"Accept-Encoding": "gzip"})
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(zipped.data) == plain.data
    assert len(zipped.data) <= len(gzip.compress(plain.data, 9)) < MAX_GZIPPED_BYTES


def test_nothing_but_comments_and_indentation_is_removed() -> None:
    assert strip_comments('// why\n  var a = "x"; // y\n\n    // why\n  f();\n') == 'var a = "x"; // y\nf();'
    # Removing lines is only right while no text or comment spans several.
    source = SOURCE.read_text()
    assert "`" not in source
    assert "/*" not in source
    assert "\\\n" not in source
