"""The console in a headless Chromium: somebody logs in, and goes from page to page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, expect, sync_playwright

from live_people import Live

SHELL = next(
    (found for name in ("chromium-headless-shell", "chromium") if (found := shutil.which(name))),
    None,
)
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The distribution's own."""
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=SHELL, args=OPTIONS)
        yield made
        made.close()


@contextmanager
def login(
    browser: Browser, live: Live, name: str, *, dark: bool = False, width: int = 1280
) -> Iterator[Page]:
    """A page of somebody who is logged in; it ends the test when the page has an error of its own, or says `owned`."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        timezone_id="Asia/Shanghai",
        locale="en-GB",
        reduced_motion="reduce",
    )
    token = live.platform.airflow.api_of(name).token()
    context.add_cookies([{"name": "_token", "value": token, "url": live.platform.airflow.url}])
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        yield page
        assert errors == []
        assert "owned" not in page.title()
    finally:
        context.close()


def show(page: Page, live: Live, path: str = "") -> None:
    """By the router where the console is there already: Airflow's own page is large."""
    if page.get_by_test_id("backstop").count():
        page.evaluate(
            "path => { history.pushState({}, '', path); dispatchEvent(new PopStateEvent('popstate')) }",
            f"/plugin/backstop/{path}",
        )
    else:
        page.goto(f"{live.platform.airflow.url}/plugin/backstop/{path}")
    page.get_by_test_id("backstop").wait_for()
    page.wait_for_timeout(100)  # until the page that was there before has given way
    expect(page.get_by_role("status")).to_have_count(0, timeout=60_000)
