"""`plaudit pages import`: what it says and writes. (Reading files: tests/analytics/ingest/test_page_files.py.)"""

import json
from pathlib import Path

from analytics.ingest import pages
from tenants.db import tenant_tx
from tests.analytics.conftest import make_page
from tests.app.cli.conftest import Run
from tests.people import Caller

CSV = """external_id,space,title,url,visibility,owner
a,eng,Page A,https://wiki.example/a,public,u-1
b,has space,Page B,https://wiki.example/b,,
c,eng,Page C,https://wiki.example/home/?utm_source=x,,
"""


def test_pages_are_imported_from_csv_and_sitemaps_and_the_same_file_changes_nothing(
    sender: Caller, page: str, tenant: str, tmp_path: Path, on_ours: Run
) -> None:
    file = tmp_path / "pages.csv"
    file.write_text(CSV)
    dry = on_ours("pages", "import", tenant, str(file), "--dry-run", "--json")
    wrong = [
        {"file": "pages.csv", "line": 3, "code": "invalid", "detail": "space: 1 to 64 of A-Z, a-z, 0-9 and . _ ~ -"},
        {"file": "pages.csv", "line": 4, "code": "duplicate_url", "detail": "Page 'home' has this address"},
    ]
    report = {"created": 1, "updated": 0, "rejected": wrong, "rejected_total": 2}
    assert (dry.returncode, json.loads(dry.stdout)) == (1, {**report, "dry_run": True})
    assert sender("GET", "/api/v1/pages/a").status_code == 404, "nothing was done"

    done = on_ours("pages", "import", tenant, str(file))
    assert (done.returncode, done.stdout) == (1, "1 created, 0 updated, 2 rejected.\n")
    assert "pages.csv, line 4: Page 'home' has this address (duplicate_url)" in done.stderr
    imported = sender("GET", "/api/v1/pages/a").get_json()
    assert (imported["title"], imported["visibility"], imported["owner"]) == ("Page A", "public", "u-1")

    sitemap = tmp_path / "sitemap.xml"
    locations = "".join(f"<url><loc>https://wiki.example/{path}</loc></url>" for path in ("docs/intro", "a"))
    sitemap.write_text(f"<urlset>{locations}</urlset>")
    assert "--space" in on_ours("pages", "import", tenant, str(sitemap)).stderr
    done = on_ours("pages", "import", tenant, str(sitemap), "--space", "docs")
    assert (done.returncode, done.stdout) == (0, "1 created, 1 updated, 0 rejected.\n"), done.stderr
    with tenant_tx(tenant) as tx:
        assert pages.get(tx, "docs:intro").title == "Intro"
        assert pages.get(tx, "a").title == "Page A", "a title from an address replaces none"
    make_page(sender, "docs:intro", url="https://wiki.example/docs/intro", title="Introduction")
    assert on_ours("pages", "import", tenant, str(sitemap), "--space", "docs").returncode == 0
    assert sender("GET", "/api/v1/pages/docs:intro").get_json()["title"] == "Introduction"
