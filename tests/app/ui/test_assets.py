"""The files of our pages: compressed, and kept for ever only at the address of their contents."""

import re

from flask.testing import FlaskClient


def test_files_are_compressed_for_who_takes_it_and_of_an_old_page_not_kept(client: FlaskClient) -> None:
    address = re.findall(r'src="(/assets/[^"]+main.js)"', client.get("/dashboard").text)[0]
    plain, zipped = client.get(address), client.get(address, headers={"Accept-Encoding": "gzip"})
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert len(zipped.data) < len(plain.data)
    assert client.get(re.sub(r"/assets/\w+", "/assets/old", address)).headers["Cache-Control"] == "no-cache"
    assert client.get("/assets/x/../settings.py").status_code == 404
    assert client.get("/assets/x/nosuch.js").status_code == 404
