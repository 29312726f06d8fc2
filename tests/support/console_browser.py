"""The console in a headless Chromium: somebody logs in, and goes from page to page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from playwright.sync_api import Browser, Page, expect, sync_playwright

from live_people import Live

SHELL = next(
    (found for name in ("chromium-headless-shell", "chromium") if (found := shutil.which(name))),
    None,
)
NOWHERE = "nowhere"
"""A path of the console that has no page."""
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MILLISECONDS = 60_000
"""How long a page, and what is expected of it, may take: most of it waits for a server."""
expect.set_options(timeout=WAIT_MILLISECONDS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The distribution's own."""
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=SHELL, args=OPTIONS)
        yield made
        made.close()


_TABS: WeakKeyDictionary[Browser, dict[tuple[str, str, int], Page]] = WeakKeyDictionary()
"""Of each browser, by address, name and width: the page that somebody left. Airflow's script takes two seconds of a core to load."""


@contextmanager
def login(
    browser: Browser, live: Live, name: str, *, dark: bool = False, width: int = 1280
) -> Iterator[Page]:
    """A page of somebody who is logged in; it ends the test when the page has an error of its own, or says `owned`."""
    tabs, key = _TABS.setdefault(browser, {}), (live.platform.airflow.url, name, width)
    page = tabs.pop(key, None) or _new_page(browser, live, name, width)
    page.emulate_media(color_scheme="dark" if dark else "light")
    errors: list[str] = []

    def note(error: object) -> None:
        errors.append(str(error))

    page.on("pageerror", note)
    try:
        yield page
        assert errors == []
        assert "owned" not in page.title()
        page.unroute_all()
        show(page, live, NOWHERE)  # what comes next finds nothing of it, and nothing asks meanwhile
        page.remove_listener("pageerror", note)
    except BaseException:
        page.context.close()
        raise
    tabs[key] = page


def _new_page(browser: Browser, live: Live, name: str, width: int) -> Page:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        timezone_id="Asia/Shanghai",
        locale="en-GB",
        reduced_motion="reduce",
    )
    token = live.platform.airflow.api_of(name).token()
    context.add_cookies([{"name": "_token", "value": token, "url": live.platform.airflow.url}])
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    return page


def show(page: Page, live: Live, path: str = "") -> None:
    """By the router where the console is there already: Airflow's own page is large. What is shown again is fetched again."""
    if page.url.endswith(f"/plugin/backstop/{path}") and path != NOWHERE:
        show(page, live, NOWHERE)
    if page.get_by_test_id("backstop").count():
        page.evaluate(
            "path => { history.pushState({}, '', path); dispatchEvent(new PopStateEvent('popstate')) }",
            f"/plugin/backstop/{path}",
        )
    else:
        page.goto(f"{live.platform.airflow.url}/plugin/backstop/{path}")
    # Until the page that was there before has given way: in the same moment its data are gone, too.
    page.wait_for_function(
        """() => document.querySelector("[data-testid=backstop]")?.dataset.at === location.pathname + location.search"""
    )
    expect(page.get_by_role("status")).to_have_count(0)
