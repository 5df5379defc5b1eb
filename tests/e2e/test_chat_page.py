"""The chat page in a real browser, at the address that a person would open."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.cluster.paths import cache_dir
from tests.e2e.served import Served

pytestmark = [pytest.mark.root, pytest.mark.browser]

SCREENSHOT = cache_dir() / "screenshots" / "chat-page.png"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium: `make install` as root gets it")
    with sync_playwright() as playwright:
        # root can't use the sandbox; a proxy from the environment must not be used
        arguments = ["--no-sandbox", "--no-proxy-server", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page that fails the test on any error of the script or a failed request."""
    page = browser.new_page(viewport={"width": 1000, "height": 760})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    yield page
    page.close()
    assert not problems


def test_a_person_asks_and_reads_the_answer_as_it_comes(smollm2: Served, page: Page) -> None:
    page.goto(smollm2.url())
    expect(page.get_by_role("heading")).to_have_text("What would you like to know?")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Done").click()
    box = page.get_by_role("textbox", name="Message")
    box.fill("What is the capital of France?")
    page.get_by_role("button", name="Send").click()
    answer = page.locator("article.assistant")
    expect(answer).to_contain_text("Paris", timeout=60_000)
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60_000)
    box.fill("And of Italy?")
    box.press("Enter")
    expect(answer).to_have_count(2)
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60_000)
    SCREENSHOT.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOT)
    assert answer.last.inner_text().strip()
