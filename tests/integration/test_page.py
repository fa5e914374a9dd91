"""The status page in a real browser: what people see of it, and what it does not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from daemon.config.settings import HealthSettings
from daemon.status.reading import read_lines
from daemon.web.endpoints import make_app
from daemon.web.server import WebServer
from tests.kit.chromium import Page, chromium
from tests.kit.shop import PICTURES, TABLES, draw, make_board, make_large_board

# Shown as text, or the page is open to whoever can name a file.
MARKUP = " <img src=//127.0.0.1:1/x onerror=alert(1)><script>alert(2)</script>"
PATHS = ("/", "/tables/sales.orders", "/tables/sales.payments", "/tables/web.sessions", "/tables/nobody")
PHONE_WIDTH = 360
# WCAG 2.1, "1.4.3 Contrast (Minimum)", for text that is not large.
CONTRAST_MIN = 4.5
# Relative luminance and contrast ratio as WCAG 2.1 defines them, for each element that has text of its own.
CONTRASTS = """(() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = (color) => {
    const [r, g, b] = color.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const [r, g, b, alpha = 1] = parse(getComputedStyle(each).backgroundColor);
      if (alpha === 1) return [r, g, b];
    }
    return null;
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    const text = own.map((node) => node.data).join('').trim();
    if (!text || !element.checkVisibility()) continue;
    const [high, low] = [luminance(parse(getComputedStyle(element).color).slice(0, 3)), luminance(ground(element))]
      .sort((a, b) => b - a);
    found.push([text.slice(0, 40), (high + 0.05) / (low + 0.05)]);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientConnection]:
    with chromium(tmp_path_factory.mktemp("chromium")) as socket:
        yield socket


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A daemon's web server, with tables in every state and errors that hold markup."""
    web = WebServer.start(HealthSettings(port=0), make_app(make_board(said=MARKUP)))
    yield web.url
    web.stop()


@pytest.fixture
def page(browser: ClientConnection) -> Iterator[Page]:
    """A tab in which pages may not run scripts. The probes of these tests may."""
    page = Page.open(browser)
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    yield page
    assert complaints(page) == []
    page.call("Page.close")


def complaints(page: Page) -> list[Any]:
    """What the console says: errors, breaches of the policy, what could not be loaded but the 404 that we ask for."""
    entries = [event["entry"] for event in page.params("Log.entryAdded")]
    logged = [entry for entry in entries if not entry.get("url", "").endswith("/tables/nobody")]
    return logged + page.params("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")


def test_without_scripts_it_tells_how_far_each_table_is_and_what_is_wrong(page: Page, address: str):
    """Names, states, versions, the error with its hint; and markup in an error is text."""
    page.visit(address)
    text = page.text()
    for name, _ in TABLES:
        assert name in text
    for state in ("synced", "syncing", "parked", "retrying", "behind", "waiting", "paused"):
        assert f"1 {state}" in text
    for told in ("not ready", "4,790 of 4,793", "47.0 min", "CorruptInput", "dvsync resume sales.payments", MARKUP):
        assert told in text, told
    assert page.ask("document.querySelectorAll('img, script').length") == 0


def test_three_hundred_tables_are_searched_and_sorted_by_a_form(page: Page):
    """The worst come first, a few reasons stand above them, and the form's address keeps the choice over a refresh."""
    web = WebServer.start(HealthSettings(port=0), make_app(make_large_board()))
    try:
        page.resize(1200, 900)
        page.visit(web.url)
        names = "[...document.querySelectorAll('td.name a')].map((each) => each.textContent)"
        states = "[...document.querySelectorAll('td.state')].map((each) => each.textContent)"
        top = "document.querySelector('tbody').getBoundingClientRect().top"
        listed = page.ask(states)
        assert (len(listed), listed[:12], listed[-1]) == (300, ["parked"] * 6 + ["retrying"] * 5 + ["behind"], "synced")
        assert page.ask(top) < 400, "the reasons push the tables off the screen"
        assert "15 reasons in tables" in page.text()

        page.ask("document.querySelector('[name=q]').value = 'CRM.'")
        page.ask("document.querySelector('[value=parked]').checked = true")
        page.ask("document.querySelector('[value=retrying]').checked = true")
        page.ask("document.querySelector('[name=order]').value = 'name'")
        page.wait_for_load(lambda: page.ask("document.querySelector('form button').click()"))
        assert page.ask("location.search") == "?q=CRM.&state=retrying&state=parked&order=name"
        found = page.ask(names)
        assert 0 < len(found) < 20
        assert found == sorted(found) and all(name.startswith("crm.") for name in found)
        assert {*page.ask(states)} <= {"parked", "retrying"}
        assert page.ask("document.querySelector('[name=q]').value") == "CRM."
        assert f"{len(found)} of 300 tables" in page.text()

        page.visit(f"{web.url}/?q=<script>&state=nonsense&order=nonsense")
        assert page.ask("document.querySelectorAll('script, td').length") == 0
        assert "No table fits" in page.text()
    finally:
        web.stop()


def test_a_tables_page_says_how_to_read_it(page: Page):
    """The metadata file, and lines that `dvsync show` prints as well, to be copied; the operation of each sync."""
    web = WebServer.start(HealthSettings(port=0), make_app(make_large_board(3)))
    try:
        page.visit(f"{web.url}/tables/crm.events_001")
        location = "s3://lake/iceberg/crm/events_001/metadata/00041-5f.metadata.json"
        copied = page.ask("[...document.querySelectorAll('pre')].map((each) => each.textContent)")
        assert copied == [*read_lines("main", "crm.events_001", location).values()]
        assert location in page.text()
    finally:
        web.stop()


def test_a_link_leads_to_the_tables_page_and_back(page: Page, address: str):
    """Its charts are drawn, its syncs and files are listed; the second link leads back."""
    page.visit(address)
    page.wait_for_load(lambda: page.ask("document.querySelector('a[href$=\"sales.orders\"]').click()"))
    assert page.ask("location.pathname") == "/tables/sales.orders"
    drawn = page.ask("[...document.querySelectorAll('polyline')].map((line) => line.getBoundingClientRect().toJSON())")
    assert len(drawn) == 4
    for line in drawn:
        assert line["width"] > 300 and line["height"] > 50
    strips = page.ask("[...document.querySelectorAll('.strip')].map((strip) => strip.getBoundingClientRect().toJSON())")
    assert len(strips) == 5
    for strip in strips:
        assert strip["width"] > 300 and 5 < strip["height"] < 30
    assert page.ask("document.querySelectorAll('tbody tr').length") == 30 + 3
    assert "4811 to 4812" in page.text()
    page.wait_for_load(lambda: page.ask("document.querySelector('a[href=\"/\"]').click()"))
    assert page.ask("location.pathname") == "/"


@pytest.mark.parametrize("path", PATHS)
def test_it_fits_on_a_phone(page: Page, address: str, path: str):
    """Nothing is wider than the screen, and nothing has to be scrolled sideways to be seen."""
    page.resize(PHONE_WIDTH, mobile=True)
    page.visit(address + path)
    wide = "[...document.querySelectorAll('*')].filter((each) => each.scrollWidth > innerWidth).map((e) => e.tagName)"
    assert (page.ask("innerWidth"), page.ask("document.documentElement.scrollWidth")) == (PHONE_WIDTH, PHONE_WIDTH)
    assert page.ask(wide) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
def test_text_stands_out_in_light_and_dark(page: Page, address: str, path: str, scheme: str):
    """By WCAG's own measure, and the two schemes are two."""
    page.prefer(scheme)
    page.visit(address + path)
    contrasts = page.ask(CONTRASTS)
    assert len(contrasts) > 1
    assert [each for each in contrasts if each[1] < CONTRAST_MIN] == []
    red = int(page.ask("getComputedStyle(document.body).backgroundColor").removeprefix("rgb(").partition(",")[0])
    assert (red > 127) == (scheme == "light")


def test_it_asks_for_nothing_but_itself(browser: ClientConnection, address: str):
    """One request a page, to its own host; no script, style, font or image from anywhere; the console is silent."""
    page = Page.open(browser)
    for path in PATHS:
        page.visit(address + path)
    asked = [event["request"]["url"] for event in page.params("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [address + path for path in PATHS]
    assert complaints(page) == []
    page.call("Page.close")


def test_it_comes_again_by_itself(page: Page, address: str):
    """The browser is told to ask again in ten seconds, without a script."""
    page.visit(address)
    scheduled = page.wait_for("Page.frameScheduledNavigation")
    assert (scheduled["reason"], scheduled["delay"]) == ("metaTagRefresh", 10)


def test_the_pictures_of_the_documents(tmp_path: Path):
    """The browser paints them: as wide as the window at twice the resolution, no blank page, and not large."""
    draw(tmp_path)
    for name, _, width, height in PICTURES:
        shot = (tmp_path / name).read_bytes()
        assert int.from_bytes(shot[16:20], "big") == 2 * width
        assert height is None or int.from_bytes(shot[20:24], "big") == 2 * height
        assert 20_000 < len(shot) < 300_000
