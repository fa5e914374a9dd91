"""The status page in a real browser: what people see of it, and what it does not do."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from websockets.sync.client import ClientConnection

from daemon.config.settings import HealthSettings, TableSettings
from daemon.status.board import Topic, Unready
from daemon.web.endpoints import Api
from daemon.web.server import WebServer
from tests.kit.boards import board_of
from tests.kit.chromium import Page, chromium
from tests.kit.shop import TABLES, StoppedClock, make_board

# Shown as text, or the page is open to whoever can name a file.
MARKUP = " <img src=//127.0.0.1:1/x onerror=alert(1)><script>alert(2)</script>"
TABLE_PATHS = ("/tables/sales.orders", "/tables/sales.payments", "/tables/web.sessions", "/tables/nobody")
PATHS = ("/", "/?q=sales&sort=name", *TABLE_PATHS)
PHONE_WIDTH = 360
ROWS = "document.querySelectorAll('td.name').length"
PAUSED_BY = "by ada on lake-1, until 2026-11-30 14:00:00 UTC: the files are moved"
SCREENS = {"status-page.png": (1200, 1000), "status-page-narrow.png": (390, 1000)}
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
    web = WebServer.start(HealthSettings(port=0), Api(make_board(said=MARKUP)).app)
    yield web.url
    web.stop()


@pytest.fixture(scope="module")
def shops() -> Iterator[str]:
    """The same with 300 tables, on a machine with an invented name."""
    web = WebServer.start(HealthSettings(port=0), Api(make_board(tables=300), host="lake-1").app)
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
    for told in (
        "not ready",
        "4,790 of 4,793",
        "mirrors: 1,243 (98.3 GB)",
        "47 min",
        "CorruptInput",
        "dvsync resume sales.payments",
        PAUSED_BY,
        MARKUP,
    ):
        assert told in text, told
    assert page.ask("document.querySelectorAll('img, script').length") == 0


def test_a_link_leads_to_the_tables_page_and_back(page: Page, address: str):
    """Its syncs and files are listed; the second link leads back."""
    page.visit(address)
    page.wait_for_load(lambda: page.ask("document.querySelector('a[href=\"/tables/sales.orders\"]').click()"))
    assert page.ask("location.pathname") == "/tables/sales.orders"
    assert page.ask("document.querySelectorAll('tbody tr').length") == 30 + 3
    for told in (
        "4811 to 4812",
        "OPTIMIZE",
        "iceberg_scan('s3://warehouse/lake/t0/metadata/04812-6a1f.metadata.json')",
        "1,243 (98.3 GB)",
        "footer: 1,240, 98.3 GB: column lines of the file has no field id for its elements",
        "copy: 3, 41.0 MB: why is not known",
    ):
        assert told in page.text(), told
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


def test_the_form_finds_tables_without_scripts(page: Page, shops: str):
    """What is typed and chosen is in the address, so it stays when the page comes again; other pages keep it."""
    page.visit(shops)
    assert page.ask(ROWS) == 100
    page.ask("document.querySelector('input[type=search]').focus()")
    page.call("Input.insertText", text="INVOICES")
    page.ask("document.querySelector('select[name=sort]').value = 'name'")
    page.wait_for_load(lambda: page.ask("document.querySelector('form button').click()"))
    assert page.ask("location.search") == "?q=INVOICES&state=&sort=name"
    assert page.ask("document.querySelector('td.name a').textContent") == "shop_00.invoices"
    assert "33 found" in page.text()
    before = len(page.params("Page.loadEventFired"))
    page.call("Page.reload")
    page.wait_for("Page.loadEventFired", after=before)
    assert page.ask("document.querySelector('input[type=search]').value") == "INVOICES"
    assert page.ask("document.querySelector('select[name=sort]').value") == "name"
    page.visit(f"{shops}/?state=synced&sort=name&page=2")
    page.wait_for_load(lambda: page.ask("document.querySelector('.pages a').click()"))
    assert page.ask("location.search") == "?state=synced&sort=name"


def test_the_headline_leads_to_the_tables_that_are_not_ready(page: Page, shops: str):
    """It says how many, and its link lists them."""
    page.visit(shops)
    assert "not ready: 4 tables" in page.text()
    page.wait_for_load(lambda: page.ask("document.querySelector('header a').click()"))
    names = page.ask("[...document.querySelectorAll('td.name a')].map((each) => each.textContent)")
    assert names[:2] == ["sales.payments", "crm.customers"] and len(names) == 4


def test_a_click_selects_a_line_to_copy(page: Page, address: str):
    """The whole of it and nothing else, with the page's own means."""
    page.visit(f"{address}/tables/sales.orders?refresh=off")
    place = page.ask("document.querySelectorAll('pre')[3].getBoundingClientRect().toJSON()")
    page.ask(f"scrollTo(0, {place['y'] - 100})")
    at = {"x": place["x"] + 40, "y": 100 + place["height"] / 2, "button": "left", "clickCount": 1}
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, **at)
    metadata = "s3://warehouse/lake/t0/metadata/04812-6a1f.metadata.json"
    assert page.ask("getSelection().toString().trim()") == f"SELECT * FROM iceberg_scan('{metadata}')"


def test_tables_that_are_not_ready_leave_the_list_on_the_screen(page: Page):
    """However many they are, the first row is in sight, on a phone too."""
    board = board_of([], StoppedClock(), lag_budget_s=300)
    for number in range(300):
        board.add(TableSettings(source=f"s3://lake/{number}", target=f"lake.t{number}", name=f"lake.t{number}"))
    board.set_unready(Topic.SOURCES, [Unready(None, f"s3://b/{number}/*: cannot be listed") for number in range(50)])
    web = WebServer.start(HealthSettings(port=0), Api(board).app)
    try:
        for width, mobile in ((1200, False), (PHONE_WIDTH, True)):
            page.resize(width, 800, mobile=mobile)
            page.visit(web.url)
            assert page.ask("document.querySelector('tbody tr').getBoundingClientRect().top") < 700
            assert "not ready: 300 tables" in page.text()
    finally:
        web.stop()


@pytest.mark.parametrize("name", SCREENS)
def test_screenshots(page: Page, shops: str, tmp_path: Path, name: str):
    """What a wide and a narrow screen show of 300 tables: no blank page, nothing cut off at the side.

    With SCREENSHOTS=docs, they become the pictures of the documentation.
    """
    width, height = SCREENS[name]
    page.resize(width, height, scale=1.5, mobile=width < 500)
    page.visit(shops)
    assert page.ask("document.querySelector('.scroll').scrollWidth <= document.querySelector('.scroll').clientWidth")
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    assert image.size == (width * 1.5, height * 1.5)
    file = Path(os.environ.get("SCREENSHOTS", tmp_path)) / name
    image.quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, optimize=True)
    assert 20_000 < file.stat().st_size < 200_000
