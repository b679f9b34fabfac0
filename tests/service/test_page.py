"""The page, in a real browser: what analysts and the owner see and do."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

import holdfast as hf
from holdfast.service import ServiceSettings

from ..conftest import skip_or_fail
from .parts import NAME, ServiceThread, as_csv, make_rows

SCREENSHOTS = "HOLDFAST_SCREENSHOTS"
"""The environment variable that names a folder in which to keep screenshots."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        skip_or_fail("browser", "chromium not found (on Debian: apt install chromium)")
    with sync_playwright() as playwright:
        # The sandbox of Chromium needs rights that a container does not have.
        options = {"executable_path": found, "args": ["--no-sandbox"]}
        browser = playwright.chromium.launch(**options)
        yield browser
        browser.close()


class Site:
    """A running service with a budget of forty answers, and its keys."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.folder, address = folder, f"sqlite:///{folder}/ledger.db"
        self.ledger = hf.Ledger(address, home=folder / "home")
        self.ledger.create_budget(NAME, hf.Budget(2.0), queries=40)
        self.key = hf.ledger.add_key(self.ledger, NAME, "ada")
        self.owner = hf.ledger.add_key(self.ledger, NAME, "olga", role="owner")
        settings = ServiceSettings(
            str(model), address, str(folder / "home"), response_step=0.0, answers_per_minute=0
        )
        self.service = ServiceThread(settings)

    def sign_in(self, browser: Browser, key: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        page = context.new_page()
        page.problems = []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: _refuse_elsewhere(page, self.service.url, request.url))
        page.goto(self.service.url)
        page.get_by_label("Access key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        return page

    @property
    def answers(self) -> int:
        return self.ledger.status(NAME).answers


def _refuse_elsewhere(page: Page, home: str, url: str) -> None:
    if not url.startswith((home, "data:")):
        page.problems.append(f"the page asked {url}")


@pytest.fixture
def site(model_file: Path, tmp_path: Path) -> Iterator[Site]:
    found = Site(model_file, tmp_path)
    with found.service:
        yield found
    found.ledger.close()


def _fill(page: Page, age: str = "71") -> None:
    page.get_by_label("age", exact=True).fill(age)
    page.get_by_label("pulse", exact=True).fill("88.5")
    page.get_by_label("ward", exact=True).select_option("stroke")
    page.get_by_label("admitted", exact=True).fill("emergency")


def _check_access(page: Page) -> None:
    """Fail if axe-core finds anything serious."""
    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert not serious, [(each["id"], each["nodes"][0]["html"]) for each in serious]


def _keep(page: Page, name: str) -> None:
    folder = os.environ.get(SCREENSHOTS)
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_ask_by_form_and_practise(site: Site, browser: Browser) -> None:
    page = site.sign_in(browser, site.key)
    left = page.locator("[data-test=left]")
    assert left.inner_text() == "40"
    _fill(page)
    page.get_by_role("button", name="Show the cost").first.click()
    assert "Nothing was spent" in page.get_by_role("status").inner_text()
    assert site.answers == 0
    page.get_by_role("button", name="Ask", exact=True).click()
    label = page.locator("[data-test=label]").inner_text()
    assert label in ("home", "stays")
    assert left.inner_text() == "39"
    assert page.get_by_label("age", exact=True).input_value() == "71"  # ready for the next one
    page.get_by_role("button", name="Ask", exact=True).click()
    assert "it was free" in page.get_by_role("status").inner_text()
    assert page.locator("[data-test=label]").inner_text() == label
    assert "7.389" in page.locator("section", has_text="What is promised").last.inner_text()
    page.get_by_role("link", name="Practice").click()
    assert "nothing is spent" in page.get_by_role("note").inner_text()
    _fill(page, "33")
    page.get_by_role("button", name="Get a made-up answer").click()
    assert "Made-up answer" in page.get_by_role("status").inner_text()
    assert site.answers == 1
    page.get_by_role("button", name="Sign out").click()
    page.goto(site.service.url)
    assert page.url.endswith("/sign-in")
    assert page.problems == []


def test_ask_with_a_csv_and_download_the_answers(site: Site, browser: Browser) -> None:
    table = make_rows(12, 3)
    table.pop("outcome")
    path = site.folder / "queries.csv"
    path.write_text(as_csv(table))
    page = site.sign_in(browser, site.key)
    page.get_by_label("Drop a CSV here").set_input_files(path)
    page.get_by_role("button", name="Show the cost").last.click()
    assert "12 new answers" in page.get_by_role("status").inner_text()
    page.get_by_role("button", name="Ask these now").click()
    assert page.locator("section.result tbody tr").count() == 12
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    assert [row["ward"] for row in rows] == table["ward"]
    assert {row["label"] for row in rows} <= {"home", "stays"}
    assert site.answers == 12
    # Dropping a file chooses it.
    page.evaluate(
        """() => {
            const files = new DataTransfer();
            files.items.add(new File(["age\\n1\\n"], "wrong.csv", {type: "text/csv"}));
            const drop = new DragEvent("drop", {dataTransfer: files, cancelable: true});
            document.querySelector(".drop").dispatchEvent(drop);
        }"""
    )
    page.get_by_role("button", name="Ask at once").click()
    assert "no column 'pulse'" in page.get_by_role("alert").inner_text()
    assert site.answers == 12
    assert [text for text in page.problems if "422" not in text] == []


def test_an_exhausted_budget_is_said_in_words(site: Site, browser: Browser) -> None:
    table = make_rows(41, 5)
    table.pop("outcome")
    path = site.folder / "many.csv"
    path.write_text(as_csv(table))
    page = site.sign_in(browser, site.key)
    page.get_by_label("Drop a CSV here").set_input_files(path)
    page.get_by_role("button", name="Show the cost").last.click()
    assert "would be refused" in page.get_by_role("status").inner_text()
    page.get_by_role("button", name="Ask these now").click()
    assert "41 new answers would cost" in page.get_by_role("alert").inner_text()
    assert site.answers == 0
    path.write_text(as_csv({name: cells[:40] for name, cells in table.items()}))
    page.get_by_label("Drop a CSV here").set_input_files(path)
    page.get_by_role("button", name="Ask at once").click()
    assert page.locator("[data-test=left]").inner_text() == "0"
    assert "Nothing is left for new answers" in page.locator("aside").inner_text()
    _fill(page, "21")
    page.get_by_role("button", name="Ask", exact=True).click()
    assert "the owner may raise the budget" in page.get_by_role("alert").inner_text()
    assert site.answers == 40


def test_a_wrong_key_and_a_forged_form_do_nothing(site: Site, browser: Browser) -> None:
    page = site.sign_in(browser, "hf-0000000000000000-" + "A" * 43)
    assert "not valid here" in page.get_by_role("alert").inner_text()
    assert page.url.endswith("/sign-in")
    page = site.sign_in(browser, site.key)
    assert page.goto(f"{site.service.url}/owner").status == 403
    cookie = page.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert site.key.split("-", 2)[2] not in cookie["value"]
    page.goto(site.service.url)
    _fill(page)
    page.evaluate("document.querySelectorAll('[name=form]').forEach(each => each.value = 'x')")
    page.get_by_role("button", name="Ask", exact=True).click()
    assert "not from this page" in page.get_by_role("alert").inner_text()
    assert site.answers == 0
    # A session ends with the key that it began with.
    hf.ledger.revoke_key(site.ledger, NAME, site.key.split("-")[1])
    page.goto(site.service.url)
    assert page.url.endswith("/sign-in")


def test_the_owner_sees_and_changes_everything(site: Site, browser: Browser) -> None:
    page = site.sign_in(browser, site.owner)
    _fill(page)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_role("link", name="Owner").click()
    assert page.locator("svg.chart rect.series0").count() == 1
    assert "olga" in page.get_by_label("Spending by day").inner_text()
    path = site.folder / "labelled.csv"
    path.write_text(as_csv(make_rows(300, 7)))
    page.get_by_label("Drop a labelled CSV").set_input_files(path)
    page.get_by_label("Column of right answers").fill("outcome")
    page.get_by_role("button", name="Compute").click()
    assert "39 answers at" in page.locator("[data-test=accuracy]").inner_text()
    assert "Not private" in page.locator(".warning").inner_text()
    page.get_by_label("Analyst", exact=True).fill("bob")
    page.get_by_role("button", name="Add a key").click()
    key = page.get_by_label("New key").input_value()
    assert site.sign_in(browser, key).get_by_text("bob").count() == 1
    page.get_by_role("button", name=f"Revoke the key {key.split('-')[1]}").click()
    assert site.sign_in(browser, key).get_by_role("alert").count() == 1
    page.get_by_label("New total epsilon").fill("3")
    raising = page.get_by_role("form", name="Raise it")
    raising.get_by_label("Reason").fill("agreed by the board")
    page.get_by_role("button", name="Raise").click()
    assert "agreed by the board" in page.get_by_label("What was done").inner_text()
    assert site.ledger.status(NAME).budget.epsilon == 3.0
    with page.expect_download() as download:
        page.get_by_role("link", name="Export the ledger").click()
    kinds = [
        row["kind"] for row in csv.DictReader(Path(download.value.path()).read_text().splitlines())
    ]
    assert kinds == ["grant", "key", "key", "answer", "key", "revoke", "grant"]
    page.get_by_text("Create a budget for another").click()
    page.get_by_label("Data set", exact=True).fill("ward-8")
    page.get_by_label("Epsilon", exact=True).fill("1")
    page.get_by_role("button", name="Create").click()
    assert site.ledger.names() == [NAME, "ward-8"]
    closing = page.get_by_role("form", name="Close it for good")
    closing.get_by_label("Type ward-7").fill("ward-8")
    closing.get_by_label("Reason").fill("over")
    page.get_by_role("button", name="Close").click()
    assert "type the name of the data set" in page.get_by_role("alert").inner_text()
    page.get_by_label("Type ward-7").fill(NAME)
    page.get_by_role("form", name="Close it for good").get_by_label("Reason").fill("over")
    page.get_by_role("button", name="Close").click()
    assert site.ledger.status(NAME).closed == "over"
    assert [text for text in page.problems if "422" not in text] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390], ids=["desktop", "phone"])
def test_every_page_can_be_read_by_everybody(
    site: Site, browser: Browser, scheme: str, width: int
) -> None:
    """No serious finding of axe-core, no sideways scrolling, and the keyboard reaches the form."""
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 844}}
    page = site.sign_in(browser, site.owner, **options)
    table = make_rows(9, 3)
    path = site.folder / "labelled.csv"
    path.write_text(as_csv(table))
    _fill(page)
    page.get_by_role("button", name="Ask", exact=True).click()
    places = {"ask": "/", "practice": "/practice", "reference": "/reference", "errors": "/errors"}
    _check_access(page)
    _keep(page, f"answer-{scheme}-{width}")
    for name, place in places.items():
        page.goto(site.service.url + place)
        _check_access(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    page.goto(f"{site.service.url}/owner")
    page.get_by_label("Drop a labelled CSV").set_input_files(path)
    page.get_by_label("Column of right answers").fill("outcome")
    page.get_by_role("button", name="Compute").click()
    _check_access(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    _keep(page, f"owner-{scheme}-{width}")
    page.goto(site.service.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.get_by_role("button", name="Sign out").click()
    _check_access(page)
    _keep(page, f"sign-in-{scheme}-{width}")
