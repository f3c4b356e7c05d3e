"""A browser for tests of pages."""

from __future__ import annotations

import shutil

import pytest

WIDTHS = (1280, 390)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium():
    """Headless Chromium; tests of pages are skipped where it, or playwright, is not installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pages are driven by playwright: pip install it")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"pages are looked at in a browser, and there is none of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=WIDTHS)
def visit(request, chromium):
    """Opens an address in a window of this width; nothing may go wrong there, or be asked from elsewhere."""
    page, troubles = chromium.new_page(viewport={"width": request.param, "height": 844}), []
    page.set_default_timeout(60_000)
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda problem: troubles.append(str(problem)))
    allowed = ("file:", "data:", "blob:", "http://127.0.0.1:", "ws://127.0.0.1:")
    page.on("request", lambda asked: None if asked.url.startswith(allowed) else troubles.append(asked.url))

    def opened(address):
        page.goto(address)
        return page

    yield opened
    assert troubles == []
    assert page.evaluate("document.documentElement.scrollWidth") == request.param  # nothing stands out
    page.close()


CUT = """() => [...document.querySelectorAll(".picture-svg")].flatMap((svg) => {
  const whole = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < whole.left - 1 || box.right > whole.right + 1 || box.bottom > whole.bottom + 1;
  }).map((text) => text.textContent);
})"""
UNNAMED = """() => [...document.querySelectorAll(".picture")].flatMap((figure) => {
  const names = [...figure.querySelectorAll(".legend button")].map((button) => button.textContent);
  return [...figure.querySelectorAll(".picture-svg [data-n]")].filter((part) => !names[part.dataset.n]);
}).length"""


@pytest.fixture
def readable():
    """Checks a page: texts of its pictures are whole, and what has a colour has a name in a legend."""

    def check(page):
        assert page.evaluate(CUT) == []
        assert page.evaluate(UNNAMED) == 0

    return check
