"""The console in a browser, on a live Airflow: each page, by four people, and each action by click and in the database."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from backstop.decisions.propose import propose
from console_browser import NOWHERE, SHELL, chromium, login, show
from console_packages import node_modules
from console_seed import MESSAGE, seed
from live_people import Live

SHOTS = os.environ.get("BACKSTOP_SCREENSHOTS")
"""A folder for pictures of the pages, to be looked at."""
PAGES = (
    "",
    "messages",
    "cases",
    "dead-letters",
    "deliveries",
    "flow",
    "resends",
    "runs",
    "proofs",
    "settings",
)
EDITED, REPLAYED, REJECTED, FEW = "console-11", "console-12", "console-13", "console-14"
"""Of the dead letters those that have stubs, and were not asked for."""
OLD, NEW = '{"order": 7, "card": "4000"}', '{"order": 7, "card": "5000"}'
pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        SHELL is None and not os.environ.get("CI"),
        reason="no Chromium here: apt-get install --no-install-recommends chromium-headless-shell",
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def axe() -> Path:
    """From the same lock as the console."""
    return node_modules() / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def shop(people: Live) -> Live:
    seed(people.rows)
    people.case("info", MESSAGE, EDITED, REPLAYED, FEW)
    people.rows("UPDATE dead_letter SET category = 'transient' WHERE message_id = %s", FEW)
    people.rows(
        "UPDATE message_stub SET message_key = 'customer 7', content = %s, created_at = created_at - interval '5 min',"
        " first_seen_at = created_at - interval '5 min' WHERE message_id IN (%s, %s, %s)",
        OLD.encode(),
        EDITED,
        REPLAYED,
        FEW,
        database="producer_a",
    )
    people.rows(
        "UPDATE dead_letter SET content = %s WHERE message_id IN (%s, %s)",
        OLD.encode(),
        EDITED,
        REPLAYED,
    )
    return people


@pytest.fixture
def two_people(shop: Live) -> Iterator[None]:
    """Edits and whole replays take two people, as they do where the settings say nothing of it."""
    config = shop.platform.config
    one = config.read_text()
    two = one.replace("second_person: []", "second_person: [edit, full_replay]")
    assert two != one
    replace(config, two)
    yield
    replace(config, one)


def replace(config: Path, text: str) -> None:
    """In one step: a task may load it at any time."""
    new = config.with_suffix(".new")
    new.write_text(text)
    new.replace(config)


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))


def serious(page: Page, axe: Path) -> list[Any]:
    """What axe-core finds of weight within the console: the frame around it is Airflow's."""
    if not page.evaluate("() => 'axe' in window"):
        page.add_script_tag(path=str(axe))
    found = page.evaluate(
        "async () => (await axe.run('[data-testid=backstop]', {resultTypes: ['violations']})).violations"
    )
    return [
        (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"][:300])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def number_of(page: Page, tile: str) -> int:
    return int(
        (page.get_by_test_id(f"tile-{tile}").get_by_role("link").text_content() or "").replace(
            ",", ""
        )
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_each_page_is_whole_in_light_and_dark_and_at_390_px(
    browser: Browser, shop: Live, axe: Path, width: int
) -> None:
    ((seeded,),) = shop.rows("SELECT max(run_id) FROM proof")
    ((over,),) = shop.rows("SELECT case_id FROM case_file WHERE subject = 'over'")
    with login(browser, shop, "olga", width=width) as page:
        paths = (
            *PAGES,
            "cases/1",
            f"cases/{over}",
            "runs/1",
            "dead-letters/1",
            "dead-letters?filter=state:open",
            f"messages?topic=orders&id={MESSAGE}",
            "messages?text=customer%207",
            "pairs?topic=orders&group=billing",
            f"proofs/{seeded}",
            f"replays/{seeded}",
            "replays/99999999",
            NOWHERE,
        )
        # Every other page comes in the dark, and is seen in the light then.
        for number, path in enumerate(paths):
            show(page, shop, path)
            missing = path in (NOWHERE, "replays/99999999")
            if missing:
                expect(
                    page.get_by_test_id("empty")
                    .or_(page.get_by_test_id("planning"))
                    .or_(page.get_by_test_id("failure"))
                    .first
                ).to_be_visible()
            else:
                expect(page.get_by_test_id("failure")).to_have_count(0)
                expect(page.locator("h1").first).to_be_visible()
            name = path.replace("/", "-").partition("?")[0] or "overview"
            for theme in ("light", "dark")[:: -1 if number % 2 else 1]:
                page.emulate_media(color_scheme=theme)
                expect(page.locator("html")).to_have_class(re.compile(rf"\b{theme}\b"))
                shot(page, f"{name}{'-dark' if theme == 'dark' else ''}-{width}")
                wide = page.evaluate(
                    "() => document.querySelector('[data-testid=backstop]').scrollWidth - window.innerWidth"
                )
                assert wide <= 0, f"{path} is {wide} px too wide ({theme})"
                assert serious(page, axe) == [], f"{path} ({theme})"


def test_every_number_of_the_first_page_leads_to_its_rows(browser: Browser, shop: Live) -> None:
    with login(browser, shop, "vera") as page:
        show(page, shop)
        ((lost,),) = shop.rows("SELECT count(*) FROM open_delivery WHERE verdict = 'LOST'")
        assert number_of(page, "Lost") == lost > 50
        page.get_by_test_id("tile-Lost").get_by_role("link").click()
        page.get_by_role("button", name="Show more").wait_for()
        rows = page.locator("[role=region][aria-label='Open deliveries'] tbody tr")
        while page.get_by_role("button", name="Show more").count():
            before = rows.count()
            page.get_by_role("button", name="Show more").click()
            expect(rows.nth(before)).to_be_attached()
        assert rows.count() == lost
        assert "verdict%3ALOST" in page.url, "a deep link"


def test_not_everything_is_done_while_a_duty_is_overdue(browser: Browser, shop: Live) -> None:
    def quiet(route: Route) -> None:
        found = route.fetch().json()
        assert any(duty["overdue"] for duty in found["duties"])
        route.fulfill(json={**found, "numbers": [], "cases": []})

    # A duty that never succeeded has time from the first run of all.
    ((first,),) = shop.rows(
        """INSERT INTO run (duty, scope, token, policy_version, code_version, state, started_at, finished_at)
           VALUES ('resend', 'long ago', gen_random_uuid(), 'p', 'c', 'failed', now() - interval '9 d', now() - interval '9 d')
           RETURNING run_id"""
    )
    try:
        with login(browser, shop, "vera") as page:
            page.route("**/backstop/api/v1/overview", quiet)
            show(page, shop)
            expect(page.get_by_test_id("answer")).to_contain_text("Not everything is done.")
            overdue = number_of(page, "Overdue duties")
            page.get_by_test_id("tile-Overdue duties").get_by_role("link").click()
            expect(page.locator("table tbody tr")).to_have_count(overdue)
            expect(page.get_by_text("overdue", exact=True)).to_have_count(overdue)
            assert overdue > 0
    finally:
        shop.rows("DELETE FROM run WHERE run_id = %s", first)


def test_what_is_under_way_and_what_the_watch_sees_is_not_called_done(
    browser: Browser, shop: Live
) -> None:
    nothing = {"numbers": [], "cases": [], "duties": [], "findings": []}
    waiting = {"name": "backlogged", "number": 7, "rows": {"list": "/deliveries", "filter": ""}}
    seen = {
        "finding": 1,
        "topic": "*",
        "group": "*",
        "title": "t",
        "began_at": "2026-11-27T10:00:00Z",
    }
    shown: dict[str, Any] = {}
    with login(browser, shop, "vera") as page:
        page.route(
            "**/backstop/api/v1/overview",
            lambda route: route.fulfill(json={**route.fetch().json(), **nothing, **shown}),
        )
        for now, answer in (
            ({}, "Everything that was looked at is done."),
            ({"numbers": [waiting]}, "Nothing is lost. Under way: Waiting in the broker (7)."),
            (
                {"findings": [{**seen, "severity": "info"}]},
                "Everything that was looked at is done.",
            ),
            ({"findings": [{**seen, "severity": "critical"}]}, "Not everything is done."),
        ):
            shown.clear()
            shown.update(now)
            show(page, shop, "settings")
            show(page, shop)
            expect(page.get_by_test_id("answer")).to_contain_text(answer)
        page.goto(shop.platform.airflow.url)
        page.get_by_test_id("backstop-card").wait_for()
        expect(page.get_by_test_id("backstop-card")).to_contain_text("Not everything is done.")
        found = page.get_by_test_id("backstop-card").get_by_role("link", name="What the watch sees")
        expect(found).to_contain_text("1")


def test_a_run_under_way_shows_what_it_does_and_one_that_is_silent_is_stuck(
    browser: Browser, shop: Live
) -> None:
    runs = shop.rows(
        """INSERT INTO run (duty, scope, token, policy_version, code_version, heartbeat_at, started_at)
           SELECT 'resend', 'live ' || a, gen_random_uuid(), 'p', 'c', now() - a * interval '1 s', now() - interval '1 h'
           FROM unnest(ARRAY[0, 3600]) a RETURNING run_id"""
    )
    for (run,) in runs:
        shop.rows(
            "UPDATE run SET phase = 'lookup', phase_done = 37, phase_of = 64 WHERE run_id = %s", run
        )
    (alive,), (silent,) = runs
    try:
        with login(browser, shop, "vera") as page:
            show(page, shop, "runs?filter=duty:resend%20state:running")
            expect(page.get_by_test_id("live").first).to_contain_text("lookup (37 of 64)")
            expect(page.get_by_text("stuck", exact=True)).to_have_count(1)
            show(page, shop, f"runs/{silent}")
            expect(page.get_by_text("stuck", exact=True)).to_have_count(1)
            expect(page.get_by_text("37 of 64")).to_be_visible()
            show(page, shop, f"runs/{alive}")
            expect(page.get_by_text("37 of 64")).to_be_visible()
    finally:
        shop.rows("DELETE FROM run WHERE run_id IN (%s, %s)", alive, silent)


def test_airflows_home_has_a_card_that_leads_to_what_is_wrong(browser: Browser, shop: Live) -> None:
    with login(browser, shop, "vera") as page:
        page.goto(shop.platform.airflow.url)
        page.get_by_test_id("backstop-card").get_by_role("link", name="Lost:").click()
        page.get_by_test_id("backstop").wait_for()
        assert "verdict%3ALOST" in page.url


def test_a_message_is_found_by_typing_its_id_and_its_story_is_told(
    browser: Browser, shop: Live
) -> None:
    with login(browser, shop, "vera") as page:
        show(page, shop, "messages")
        page.keyboard.press("/")
        page.keyboard.type(MESSAGE)
        page.keyboard.press("Enter")
        page.get_by_test_id("sentence").wait_for()
        assert "billing" in (page.get_by_test_id("sentence").text_content() or "")
        expect(page.get_by_test_id("timeline")).to_contain_text("recorded on shop_a")
        expect(page.get_by_test_id("away")).to_have_count(0)
        groups = page.locator("[role=region][aria-label=Groups]")
        instant = groups.locator("time").first
        at = datetime.fromisoformat(instant.get_attribute("datetime") or "")
        expect(instant).to_contain_text(f"{at.astimezone(ZoneInfo('Asia/Shanghai')):%H:%M:%S} (")
        expect(groups).not_to_contain_text("UTC")
        expect(page.get_by_role("button", name="Resend this message")).to_be_disabled()
        expect(page.get_by_text("Airflow does not let you start runs of resend.")).to_be_visible()
        shot(page, "message")
        show(page, shop, "messages?text=nobody-knows-this")
        expect(page.get_by_test_id("empty")).to_contain_text("Nothing has a trace of this id.")


def test_a_pause_a_note_and_a_reading_are_done_by_click_in_ones_own_name(
    browser: Browser, shop: Live
) -> None:
    with login(browser, shop, "olga") as page:
        show(page, shop, "resends")
        page.get_by_role("button", name="Pause payments").click()
        page.get_by_test_id("why").fill("the shop moves")
        page.get_by_test_id("send").click()
        page.get_by_test_id("paused-payments").wait_for()
        assert shop.rows("SELECT topic, paused_by, why FROM pause") == [
            ("payments", "olga", "the shop moves")
        ]
        page.get_by_role("button", name="Resume payments").click()
        page.get_by_test_id("no-pause").wait_for()
        assert shop.rows("SELECT count(*) FROM pause") == [(0,)]
        ((case_id,),) = shop.rows("SELECT case_id FROM case_file WHERE subject = 'console'")
        show(page, shop, f"cases/{case_id}")
        page.get_by_test_id("note-text").fill("<b>seen</b>")
        page.get_by_test_id("note-send").click()
        expect(page.get_by_test_id("note")).to_contain_text("<b>seen</b>")
        assert shop.rows("SELECT written_by, note FROM case_note WHERE case_id = %s", case_id) == [
            ("olga", "<b>seen</b>")
        ]
        ((letter,),) = shop.rows(
            "SELECT min(dead_letter_id) FROM dead_letter WHERE case_id = %s", case_id
        )
        show(page, shop, f"dead-letters/{letter}")
        assert "the content &lt;img" not in page.content()
        page.get_by_test_id("read-content").click()
        page.get_by_text("the content <img").wait_for()
        ((who, what),) = shop.rows(
            "SELECT who, subject FROM decision_log ORDER BY entry DESC LIMIT 1"
        )
        assert (who, what) == ("olga", f"dead letter {letter}")


def test_an_admin_pauses_everything_by_click_and_goes_on(browser: Browser, shop: Live) -> None:
    with login(browser, shop, "admin") as page:
        show(page, shop, "settings")
        expect(page.get_by_test_id("me")).to_contain_text("admin")
        show(page, shop, "resends")
        page.get_by_role("button", name="Pause everything").click()
        page.get_by_test_id("why").fill("the broker is rebuilt")
        page.get_by_test_id("send").click()
        page.get_by_test_id("paused-*").wait_for()
        pauses = "SELECT topic, paused_by, why FROM pause"
        assert shop.rows(pauses) == [("*", "admin", "the broker is rebuilt")]
        show(page, shop)
        expect(page.get_by_text("paused by admin: the broker is rebuilt")).to_be_visible()
        show(page, shop, "resends")
        page.get_by_role("button", name="Resume all").click()
        page.get_by_test_id("no-pause").wait_for()
        assert shop.rows(pauses) == []


def test_what_backstop_check_finds_is_shown_by_click(
    browser: Browser, shop: Live, axe: Path
) -> None:
    with login(browser, shop, "admin") as page:
        show(page, shop, "settings")
        page.get_by_test_id("check").click()
        page.get_by_test_id("checked").wait_for()
        found = page.locator("[role=region][aria-label='What backstop check finds']")
        expect(found).to_contain_text("shard shop_a")
        assert serious(page, axe) == []


@pytest.fixture
def one_shard_away(shop: Live) -> Iterator[None]:
    """A shard whose connection nobody knows."""
    config = shop.platform.config
    whole = config.read_text()
    without = whole.replace("connection: backstop_producer_b", "connection: backstop_nowhere")
    assert without != whole
    replace(config, without)
    yield
    replace(config, whole)


@pytest.mark.usefixtures("one_shard_away")
def test_a_search_while_a_shard_is_away_names_it_and_shows_the_rest(
    browser: Browser, shop: Live, axe: Path
) -> None:
    with login(browser, shop, "vera") as page:
        show(page, shop, f"messages?topic=orders&id={MESSAGE}")
        expect(page.get_by_test_id("away")).to_contain_text("shard shop_b")
        expect(page.get_by_test_id("timeline")).to_contain_text("recorded on shop_a")
        assert serious(page, axe) == []
        show(page, shop, "messages?text=nobody-knows-this")
        expect(page.get_by_test_id("empty")).to_contain_text("Nothing has a trace of this id.")
        expect(page.get_by_text("shard shop_b").first).to_be_visible()
        # What needs no store is as it was.
        show(page, shop)
        expect(page.get_by_test_id("failure")).to_have_count(0)


@pytest.mark.usefixtures("two_people")
def test_a_second_person_rejects_by_click_and_the_case_waits_again(
    browser: Browser, shop: Live
) -> None:
    shop.forget_cases()
    ((case_id,),) = shop.rows("SELECT case_id FROM case_file WHERE subject = 'console'")
    shop.rows(
        "UPDATE case_file SET state = 'open', closed_at = NULL, severity = 'critical' WHERE case_id = %s",
        case_id,
    )
    ((letter,),) = shop.rows(
        "SELECT dead_letter_id FROM dead_letter WHERE message_id = %s", REJECTED
    )
    connection = shop.control()
    propose(
        connection,
        case_id,
        "edit",
        "olga",
        "the card was wrong",
        {"letters": [letter], "content": b"{}"},
    )
    connection.close()
    shop.look()
    shop.question(case_id)
    run = shop.run_of(case_id)
    with login(browser, shop, "otto") as page:

        def reject() -> int:
            show(page, shop, f"cases/{case_id}")
            page.get_by_test_id("answer-reject").click()
            page.get_by_test_id("why").fill("the customer changed their mind")
            page.get_by_test_id("send").click()
            page.get_by_test_id("taken").wait_for()
            return 200

        reject()
        shop.answers_again(run, reject)
        assert shop.end_of(run)[""] == "success"
    ended = (
        "SELECT how, ended_by FROM proposal WHERE case_id = %s ORDER BY proposal_id DESC LIMIT 1"
    )
    assert shop.rows(ended, case_id) == [("rejected", "otto")]
    assert shop.rows("SELECT state FROM case_file WHERE case_id = %s", case_id) == [("open",)]
    state = "SELECT state FROM dead_letter WHERE dead_letter_id = %s"
    assert shop.rows(state, letter) == [("open",)], "nothing was applied"


def test_what_is_proposed_is_shown_whole_and_another_proposal_is_not_approved_by_a_click_meant_for_it(
    browser: Browser, shop: Live
) -> None:
    ids = ("console-twice-1", "console-twice-2")
    case_id = shop.case("info", *ids, kind="exhausted")
    # Airflow's form is not answered here: it is enough that one is there.
    shop.rows(
        "INSERT INTO case_question (case_id, number, dag_run_id, shown_at) VALUES (%s, 1, 'console-twice', now())",
        case_id,
    )
    connection = shop.control()

    def propose_more(more: int) -> None:
        shop.rows(
            "UPDATE proposal SET ended_at = now(), ended_by = 'otto', how = 'rejected' WHERE case_id = %s AND ended_at IS NULL",
            case_id,
        )
        options = {"more": more, "message_ids": list(ids)}
        propose(connection, case_id, "raise", "olga", "they are paid for", options)

    propose_more(100)
    with login(browser, shop, "otto") as page:
        show(page, shop, f"cases/{case_id}")
        proposal, approve = page.get_by_test_id("proposed"), page.get_by_test_id("answer-approve")
        expect(proposal).to_contain_text("How many more sends100")
        for message_id in ids:
            expect(proposal.get_by_role("link", name=message_id, exact=True)).to_be_visible()
        approve.click()
        page.get_by_test_id("why").fill("seen")
        expect(approve).to_have_attribute("aria-pressed", "true")
        propose_more(7)
        expect(proposal).to_contain_text("How many more sends7")
        expect(approve).to_have_attribute("aria-pressed", "false")
        expect(page.get_by_test_id("send")).to_have_count(0)
        # What Airflow refuses is said aloud.
        page.route(
            "**/hitlDetails",
            lambda route: route.fulfill(status=409, json={"detail": "somebody was faster"}),
        )
        approve.click()
        page.get_by_test_id("why").fill("seen")
        page.get_by_test_id("send").click()
        expect(page.get_by_role("alert")).to_contain_text("somebody was faster")
    connection.close()
    shop.rows("DELETE FROM proposal WHERE case_id = %s", case_id)
    shop.rows("UPDATE case_question SET ended_at = now(), how = 'over' WHERE case_id = %s", case_id)
    shop.rows(
        "UPDATE case_file SET state = 'closed', closed_at = now() WHERE case_id = %s", case_id
    )


def test_a_case_is_answered_by_click_and_decided_in_the_name_of_who_clicked(
    browser: Browser, shop: Live
) -> None:
    shop.forget_cases()
    case_id = shop.case("critical", "console-asked", kind="exhausted")
    shop.look()
    shop.question(case_id)
    run = shop.run_of(case_id)

    def crowd(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "open": 10_001})

    with login(browser, shop, "olga") as page:
        page.route("**/preview?*", crowd)

        def answer() -> int:
            show(page, shop, "cases")
            expect(page.get_by_test_id("badge")).to_be_visible()
            page.get_by_role("link", name=str(case_id), exact=True).click()
            page.get_by_test_id("answer-raise").click()
            page.get_by_label("How many more sends").fill("5")
            # What belongs to another answer is not sent with this one, which would be refused for it.
            page.get_by_test_id("answer-discard").click()
            page.get_by_test_id("preview").click()
            expect(page.get_by_test_id("previewed")).to_contain_text(
                "At this moment it fits 1 of 1 that were read again (more than 10,000 are open)"
            )
            page.get_by_test_id("why").fill("we know")
            page.get_by_test_id("send").click()
            page.get_by_test_id("taken").wait_for()
            return 200

        answer()
        shop.answers_again(run, answer)
        assert shop.end_of(run)[""] == "success"
    decided = shop.rows(
        "SELECT decision, decided_by, why FROM case_file WHERE case_id = %s", case_id
    )
    assert decided == [("discard", "olga", "we know")]
    assert shop.rows(
        "SELECT decided_by FROM delivery_decision WHERE message_id = 'console-asked'"
    ) == [("olga",)]


def test_a_resend_is_asked_for_by_click_as_a_run_of_the_dag_in_ones_own_name(
    browser: Browser, shop: Live
) -> None:
    with login(browser, shop, "olga") as page:
        show(page, shop, f"messages?topic=orders&id={MESSAGE}")
        page.get_by_role("button", name="Resend this message").click()
        page.get_by_test_id("why").fill("the customer called")
        page.get_by_test_id("send").click()
        run = page.get_by_test_id("asked").get_by_role("link").text_content() or ""
        asked = (
            "SELECT triggering_user_name, conf FROM dag_run WHERE dag_id = 'resend' AND run_id = %s"
        )
        ((who, conf),) = shop.airflow(asked, run)
        assert who == "olga" and MESSAGE in str(conf) and "the customer called" in str(conf)
        shop.wait("resend", run)


def test_the_flow_page_shows_owners_blocked_queues_and_parked_keys_and_leads_to_their_cases(
    browser: Browser, shop: Live
) -> None:
    shop.rows(
        "UPDATE case_file SET state = 'open', closed_at = NULL WHERE kind IN ('queue_blocked', 'key_parked')"
    )
    with login(browser, shop, "vera") as page:
        show(page, shop, "flow")
        queues = page.locator("[role=region][aria-label=Queues]")
        expect(queues.locator("tbody tr")).to_have_count(
            shop.rows("SELECT count(*) FROM watch_queue")[0][0]
        )
        expect(queues).to_contain_text("(OWNED)")
        for name, kind in (("Blocked queues", "queue_blocked"), ("Parked keys", "key_parked")):
            table = page.locator(f"[role=region][aria-label='{name}']")
            case_ids = shop.rows(
                "SELECT case_id FROM case_file WHERE kind = %s AND state = 'open' ORDER BY case_id DESC",
                kind,
            )
            cells = table.locator("tbody tr td:first-child").all_text_contents()
            assert [int(text) for text in cells] == [case_id for (case_id,) in case_ids], name
            table.get_by_role("link", name=str(case_ids[0][0]), exact=True).click()
            page.get_by_test_id("summary").wait_for()
            assert page.url.endswith(f"/cases/{case_ids[0][0]}")
            show(page, shop, "flow")


def test_a_message_is_found_by_its_key_from_the_keyboard_alone(
    browser: Browser, shop: Live
) -> None:
    with login(browser, shop, "vera") as page:
        show(page, shop, "settings")
        link = page.get_by_role("link", name="Where is my message?")
        page.get_by_role("link", name="Is everything done?").focus()
        page.keyboard.press("Tab")
        expect(link).to_be_focused()
        page.keyboard.press("Enter")
        page.get_by_test_id("search").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("customer 7")
        page.keyboard.press("Enter")
        page.get_by_text("shard shop_a, by message key").first.wait_for()
        page.get_by_role("link", name=EDITED, exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("sentence")).to_contain_text("billing")


def test_a_reader_of_the_screen_hears_each_hour_and_where_they_are(
    browser: Browser, shop: Live
) -> None:
    with login(browser, shop, "vera") as page:
        show(page, shop)
        expect(page).to_have_title("Is everything done? - Backstop")
        hours = page.get_by_role("table", name="Open deliveries by the hour").get_by_role("row")
        expect(hours.nth(20)).to_have_count(1)
        numbers = [row.get_by_role("cell").all_text_contents() for row in hours.all()[1:4]]
        assert all(int(number) > 0 for row in numbers for number in row), numbers
        page.get_by_role("link", name="Flow", exact=True).click()
        expect(page).to_have_title("Flow - Backstop")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        page.get_by_test_id("skip").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#backstop-content")).to_be_focused()


def test_what_a_filter_may_say_next_is_suggested(browser: Browser, shop: Live) -> None:
    with login(browser, shop, "vera") as page:
        show(page, shop, "dead-letters")
        box = page.get_by_test_id("filter")
        suggested = page.locator(f"datalist[id='{box.get_attribute('list')}'] option")
        expect(suggested.and_(page.locator("[value='topic:orders']"))).to_have_count(1)
        box.fill("topic:orders st")
        expect(suggested.and_(page.locator("[value='topic:orders state:open']"))).to_have_count(1)
        expect(suggested.and_(page.locator("[value='topic:orders cause:']"))).to_have_count(1)


def test_dead_letters_that_match_are_exported_by_click(
    browser: Browser, shop: Live, axe: Path
) -> None:
    with login(browser, shop, "olga") as page:
        show(page, shop, "dead-letters?filter=topic:orders%20state:open%20category:poison")
        page.get_by_test_id("act-on-all").click()
        ((number,),) = shop.rows(
            "SELECT count(*) FROM dead_letter WHERE topic = 'orders' AND state = 'open' AND category = 'poison'"
        )
        expect(page.get_by_test_id("matching")).to_contain_text(f"{number} dead letters match.")
        assert serious(page, axe) == []
        with page.expect_download() as download:
            page.get_by_test_id("export").click()
        rows = json.loads(Path(download.value.path()).read_text())
        assert len(rows) == number and {row["text"] for row in rows} == {None}
        page.get_by_role("button", name="Export with contents").click()
        page.get_by_test_id("why").fill("an audit")
        with page.expect_download() as download:
            page.get_by_test_id("send").click()
        rows = json.loads(Path(download.value.path()).read_text())
        assert len(rows) == number and any("the content <img" in row["text"] for row in rows)
        last = "SELECT who, subject, why FROM decision_log ORDER BY entry DESC LIMIT 1"
        assert shop.rows(last) == [("olga", "dead letters", "an audit")]


DIFFERENT: tuple[tuple[str, str, list[str], list[str]], ...] = (
    (
        '{"account": 9007199254740993}',
        '{"account": 9007199254740992}',
        ['  "account": 9007199254740993'],
        ['  "account": 9007199254740992'],
    ),
    ('{"a": 1, "a": 2}', '{"a": 2}', ['  "a": 1,'], []),
    ('{"a": 1}', '{ "a": 1}', ['{"a": 1}'], ['{ "a": 1}']),
    (f"{'x' * 200_000}1", f"{'x' * 200_000}2", [], []),
)
"""Two contents, and the lines that are shown as gone and as added; of the last pair, none: they differ too far behind."""


def test_two_contents_that_differ_are_never_said_to_be_the_same(
    browser: Browser, shop: Live
) -> None:
    ((letter,),) = shop.rows("SELECT max(dead_letter_id) FROM dead_letter WHERE state = 'open'")
    content: dict[str, Any] = dict.fromkeys(("headers", "cause", "error"), "")
    content |= {"dead_letter": letter, "base64": None, "content_bytes": 1}
    checked = {"findings": [], "compared_with": []}
    with login(browser, shop, "olga") as page:
        page.route("**/dead-letters/*/content", lambda route: route.fulfill(json=content))
        page.route("**/dead-letters/*/check", lambda route: route.fulfill(json=checked))
        for old, new, gone, added in DIFFERENT:
            content["text"] = old
            show(page, shop, "settings")
            show(page, shop, f"dead-letters/{letter}")
            page.get_by_test_id("read-content").click()
            page.get_by_test_id("edit").click()
            page.get_by_test_id("new-content").fill(new)
            page.get_by_test_id("compare").click()
            diff = page.get_by_test_id("diff")
            diff.wait_for()
            assert "Nothing differs." not in (diff.text_content() or ""), old[:40]
            assert diff.locator("del").all_text_contents() == gone
            assert diff.locator("ins").all_text_contents() == added
            expect(page.get_by_test_id("cut")).to_have_count(int(len(old) > 200_000))


@pytest.mark.usefixtures("two_people")
def test_a_content_is_edited_beside_the_old_one_and_sent_when_a_second_person_says_yes(
    browser: Browser, shop: Live, axe: Path
) -> None:
    shop.forget_cases()
    ((case_id, letter),) = shop.rows(
        "SELECT case_id, dead_letter_id FROM dead_letter WHERE message_id = %s", EDITED
    )
    shop.rows(
        "UPDATE case_file SET state = 'open', closed_at = NULL, severity = 'critical' WHERE case_id = %s",
        case_id,
    )
    shop.look()
    shop.question(case_id)
    with login(browser, shop, "olga") as page:

        def edit(content: str) -> None:
            show(page, shop, f"dead-letters/{letter}")
            page.get_by_test_id("read-content").click()
            page.get_by_test_id("edit").click()
            page.get_by_test_id("new-content").fill(content)
            page.get_by_test_id("compare").click()
            page.get_by_test_id("diff").wait_for()

        edit("{broken")
        expect(page.get_by_test_id("findings")).to_contain_text("is not JSON")
        page.get_by_test_id("edit-why").fill("the card was wrong")
        expect(page.get_by_test_id("send-edit")).to_be_disabled()
        shot(page, "edit")
        assert serious(page, axe) == []

        def answer() -> int:
            edit(NEW)
            expect(page.get_by_test_id("diff").locator("del")).to_have_text('  "card": "4000"')
            expect(page.get_by_test_id("diff").locator("ins")).to_have_text('  "card": "5000"')
            page.get_by_test_id("edit-why").fill("the card was wrong")
            page.get_by_test_id("send-edit").click()
            page.get_by_test_id("edit-sent").wait_for()
            return 200

        run = shop.run_of(case_id)
        answer()
        shop.answers_again(run, answer)
        assert shop.end_of(run)[""] == "success"
    proposed = "SELECT action, who, why, convert_from(content, 'UTF8') FROM proposal WHERE case_id = %s AND ended_at IS NULL"
    assert shop.rows(proposed, case_id) == [("edit", "olga", "the card was wrong", NEW)]
    content = "SELECT convert_from(content, 'UTF8'), content_version FROM message_stub WHERE message_id = %s"
    assert shop.rows(content, EDITED, database="producer_a") == [(OLD, 1)]
    shop.look()
    shop.question(case_id)
    run = shop.run_of(case_id)
    with login(browser, shop, "otto") as page:

        def approve() -> int:
            show(page, shop, f"cases/{case_id}")
            expect(page.get_by_text("olga proposed to edit")).to_be_visible()
            expect(page.get_by_test_id("proposed")).to_contain_text(f"{len(NEW)} bytes, SHA-256")
            page.get_by_test_id("read-proposed").click()
            expect(page.get_by_test_id("diff").locator("del")).to_have_text('  "card": "4000"')
            expect(page.get_by_test_id("diff").locator("ins")).to_have_text('  "card": "5000"')
            page.get_by_test_id("answer-approve").click()
            page.get_by_test_id("why").fill("seen")
            page.get_by_test_id("send").click()
            page.get_by_test_id("taken").wait_for()
            return 200

        approve()
        shop.answers_again(run, approve)
        assert shop.end_of(run)[""] == "success"
    assert shop.rows(content, EDITED, database="producer_a") == [(NEW, 2)]
    state = "SELECT state, decided_by FROM dead_letter WHERE dead_letter_id = %s"
    assert shop.rows(state, letter) == [("replaying", "olga, approved by otto")]


def test_a_few_within_the_radius_are_replayed_by_click_without_an_approval(
    browser: Browser, shop: Live
) -> None:
    with login(browser, shop, "olga") as page:
        show(page, shop, "dead-letters?filter=topic:orders%20state:open%20category:transient")
        page.get_by_test_id("act-on-all").click()
        expect(page.get_by_test_id("matching")).to_contain_text("1 dead letters match.")
        page.get_by_role("button", name="Replay the first few that match").click()
        page.get_by_test_id("why").fill("a first try")
        page.get_by_test_id("send").click()
        page.get_by_test_id("planning").or_(page.get_by_test_id("planned")).wait_for()
        run = unquote(page.url.rpartition("/")[2])
    asked = "SELECT requested_by FROM resend_request WHERE message_id = %s AND requested_by LIKE '%%incident%%'"
    shop.wait_for(lambda: shop.rows(asked, FEW), "the request of the canary")
    ((plan,),) = shop.rows("SELECT run_id FROM incident WHERE planned_in = %s", run)
    assert shop.rows(asked, FEW) == [(f"olga (incident {plan})",)]
    assert shop.wait("replay_incident", run) == "success"


@pytest.mark.usefixtures("two_people")
def test_all_that_match_are_planned_by_one_and_approved_by_another_who_sees_the_digest(
    browser: Browser, shop: Live, axe: Path
) -> None:
    with login(browser, shop, "olga") as page:
        show(page, shop, "dead-letters?filter=topic:orders%20state:open%20category:poison")
        page.get_by_test_id("act-on-all").click()
        page.get_by_role("button", name="Plan a replay of all that match").click()
        page.get_by_test_id("why").fill("the card service is back")
        page.get_by_test_id("send").click()
        page.get_by_test_id("planning").or_(page.get_by_test_id("planned")).wait_for()
        run = unquote(page.url.rpartition("/")[2])
        page.get_by_test_id("planned").wait_for(timeout=300_000)
        shop.wait_until_parked("replay_incident", run, "approve")
    ((plan, planned_by, yes),) = shop.rows(
        "SELECT run_id, planned_by, shown ->> 'yes' FROM incident WHERE planned_in = %s", run
    )
    assert planned_by == "olga"
    asked = "SELECT requested_by FROM resend_request WHERE message_id = %s AND requested_by LIKE '%%incident%%'"
    assert shop.rows(asked, REPLAYED) == []
    with login(browser, shop, "vera") as page:
        show(page, shop, f"replays/{plan}")
        expect(page.get_by_test_id("approve")).to_be_disabled()
    with login(browser, shop, "otto") as page:

        def approve() -> int:
            show(page, shop, f"replays/{plan}")
            expect(page.get_by_test_id("yes")).to_have_text(yes)
            shot(page, "replay")
            assert serious(page, axe) == []
            page.get_by_test_id("approve").click()
            page.get_by_test_id("taken").wait_for()
            return 200

        approve()
        shop.answers_again(run, approve, "replay_incident", "approve")
        assert shop.end_of(run, dag="replay_incident", task="approve")[""] == "success"
        assert shop.rows(asked, REPLAYED) == [(f"otto (incident {plan})",)]
        show(page, shop, "resends")
        page.locator("[role=region][aria-label=Replays]").get_by_role(
            "link", name=str(plan), exact=True
        ).click()
        expect(page.get_by_test_id("sends")).to_be_visible()
        ((planned,),) = shop.rows("SELECT count(*) FROM incident_delivery WHERE run_id = %s", plan)
        rows = page.locator("[role=region][aria-label='Deliveries of this plan'] tbody tr")
        expect(rows).to_have_count(min(planned, 50))


@pytest.mark.parametrize("name", ["vera", "uwe"])
def test_who_may_only_look_finds_every_button_grey_with_the_reason(
    browser: Browser, shop: Live, name: str
) -> None:
    ((case_id,),) = shop.rows("SELECT max(case_id) FROM case_file WHERE kind = 'dead_letters'")
    with login(browser, shop, name) as page:
        show(page, shop, f"cases/{case_id}")
        for button in page.locator("[data-testid^=answer-]").all():
            expect(button).to_be_disabled()
        show(page, shop, "dead-letters/1")
        expect(page.get_by_test_id("read-content")).to_be_disabled()
        show(page, shop, "dead-letters?filter=topic:orders%20state:open")
        page.get_by_test_id("act-on-all").click()
        expect(page.get_by_role("button", name="Export with contents")).to_be_disabled()
        plan = page.get_by_role("button", name="Plan a replay of all that match")
        # Whoever may start its DAG may have a plan made; who may decide approves it.
        expect(plan).to_be_enabled(enabled=name == "uwe")
        show(page, shop, "settings")
        expect(page.get_by_test_id("me")).to_contain_text(name)
        expect(page.get_by_text("no", exact=True).first).to_be_visible()


def test_without_a_login_nothing_is_shown_and_an_error_says_what_still_holds(
    browser: Browser, shop: Live
) -> None:
    context = browser.new_context()
    page = context.new_page()
    for path in ("backstop/api/v1/overview", "backstop/console.js", "backstop/runs"):
        answer = page.request.get(f"{shop.platform.airflow.url}/{path}")
        assert answer.status in (401, 403), path
    context.close()
    with login(browser, shop, "vera") as page:
        page.route("**/backstop/api/v1/overview", lambda route: route.abort())
        show(page, shop)
        expect(page.get_by_test_id("failure")).to_contain_text(
            "verdicts, repairs and alerts continue"
        )
