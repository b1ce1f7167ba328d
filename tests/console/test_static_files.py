"""What browsers load: files of others are what was published, and pages are small."""

from __future__ import annotations

import hashlib
import json
import re

from console.fake_site import OPERATORS, FakeSite
from console.furnished import furnished_site
from console.pages import browser
from quaymaster.console.site import QueueNow
from quaymaster.console.web.templating import STATIC

FIRST_PAGE_BYTES_MAX = 150_000
NEXT_PAGE_BYTES_MAX = 15_000
_LOADED = re.compile(r'(?:src|href)="(/static/[^"]+)"')
_IMPORTED = re.compile(r'from "\./([\w.]+)"')
OURS = ("app.js", "bodies.js", "charts.js", "keys.js", "live.js")
PAGES = (
    "/",
    "/queues",
    f"/queues/{OPERATORS}/orders",
    f"/queues/{OPERATORS}/orders/settings",
    "/alerts",
    "/cell",
)


def test_files_of_others_are_those_that_were_published_with_their_licenses() -> None:
    vendored = json.loads((STATIC / "vendored.json").read_text())

    for name, one in vendored.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == one["sha256"], name
        assert (STATIC / f"{name.partition('.')[0]}.LICENSE.txt").read_text().strip()
    scripts = {file.name for file in STATIC.iterdir() if file.name.endswith((".js", ".css"))}
    assert scripts - set(vendored) == {*OURS, "app.css", "tokens.css"}


def test_own_scripts_evaluate_no_text_and_colors_have_names() -> None:
    for name in OURS:
        text = (STATIC / name).read_text()
        for word in ("eval(", "new Function", "outerHTML", "insertAdjacentHTML", "document.write"):
            assert word not in text, name
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b", (STATIC / "app.css").read_text())


def test_first_page_and_the_next_are_small() -> None:
    site = furnished_site()
    site.listed += [
        QueueNow(
            OPERATORS,
            f"queue-{number}",
            f"q{number}",
            False,
            False,
            0,
            site.at_ms,
            number * 7,
            number,
            3,
            0,
            site.at_ms - number * 1_000,
            number / 3,
            number / 4,
            number / 5,
        )
        for number in range(1_000)
    ]
    client = browser(site, OPERATORS)

    sizes = {page: len(client.get(page, accept_encoding="gzip").body) for page in PAGES}
    loaded = set(_LOADED.findall(client.get("/queues").text))
    loaded |= {f"/static/{name}" for name in _IMPORTED.findall((STATIC / "app.js").read_text())}
    files = sum(len(client.get(target, accept_encoding="gzip").body) for target in loaded)

    assert len(loaded) == 11
    assert max(sizes.values()) < NEXT_PAGE_BYTES_MAX, sizes
    assert files + max(sizes.values()) < FIRST_PAGE_BYTES_MAX


def test_file_with_its_hash_in_the_url_is_kept_and_one_without_is_asked_for_again() -> None:
    client = browser(FakeSite())
    named = next(target for target in _LOADED.findall(client.get("/sign-in").text) if "app.css" in target)

    kept, asked = client.get(named), client.get("/static/charts.js")

    assert "immutable" in kept.headers["cache-control"]
    assert asked.headers["cache-control"] == "no-cache"
    assert client.get("/static/charts.js", if_none_match=asked.headers["etag"]).status == 304
    assert kept.headers["content-type"].startswith("text/css")
    assert client.get("/static/none.js").status == 404
    assert client.get("/static/..%2fapp.py").status == 404
