"""The cell: its processes with what they use, and what one of them used."""

import re

from console.fake_site import CUSTOMERS, NOW_MS, OPERATORS
from console.furnished import furnished_site
from console.pages import browser

STALE = 'title="Last read'


def test_processes_have_what_they_use_and_a_dash_where_they_have_not_told() -> None:
    site = furnished_site()

    page = browser(site, OPERATORS).get("/cell").text
    [broker, _, _, _, silent] = [part for part in page.split("<tr>") if 'data-label="memory"' in part]

    assert 'aria-label="CPU 42 %"' in broker
    assert 'aria-label="memory 21 %"' in broker
    assert "1.6 GiB" in broker
    assert STALE not in broker
    assert silent.count("–") >= 3
    assert 'href="/cell/broker/b1"' in broker
    assert "href" not in silent


def test_what_a_process_used_longer_ago_than_15_s_is_marked_with_its_age() -> None:
    site = furnished_site()
    first = site.cell_now.processes[0]._replace(measured_ms=NOW_MS - 16_000)
    site.cell_now = site.cell_now._replace(processes=[first])

    assert STALE in browser(site, OPERATORS).get("/cell").text


def test_a_journal_without_a_leader_shows_which_broker_led_last() -> None:
    page = browser(furnished_site(), OPERATORS).get("/cell").text

    assert re.search(r'! no leader</span> <span class="muted">last b1</span>', page)


def test_charts_of_a_process_are_for_operators() -> None:
    site = furnished_site()

    shown = browser(site, OPERATORS).get("/cell/broker/b1")
    assert shown.status == 200
    assert "Processor, of one core" in shown.text
    assert browser(site, OPERATORS).get("/cell/broker/none").status == 404
    assert browser(site, CUSTOMERS).get("/cell/broker/b1").status == 403
