"""The chat page in a real browser, against a tiny model: its controls, and what it must not do."""

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.contract.conftest import API_KEY
from tests.contract.server_process import ServerProcess
from tests.models.dialogues import FRANCE, FRANCE_THINKING

pytestmark = pytest.mark.browser

# Without the last four Chromium calls home, which a closed network turns into errors.
ARGUMENTS = [
    "--no-sandbox", "--no-proxy-server", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

HOSTILE = """\
<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">
**<b onclick=alert(1)>bold</b>** [link](javascript:window.hacked=1) [good](https://example.org/a)
`<i>code</i>`

```html
<script>window.hacked = 1</script>
```"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium: `make install` as root gets it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(params=[(1200, 800), (390, 844)], ids=["desktop", "phone"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh page, which fails the test on any error of its script."""
    width, height = request.param
    page = browser.new_page(viewport={"width": width, "height": height})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert not errors


def open_page(page: Page, server: ServerProcess) -> None:
    page.goto(f"{server.url}/")
    expect(page.locator("#blocks")).to_contain_text("blocks free")


def ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def set_longest(page: Page, tokens: int) -> None:
    """Make answers short, and always the same."""
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer, tokens").fill(str(tokens))
    page.get_by_role("button", name="Done").click()


def test_an_answer_is_streamed_with_its_rate_and_nothing_hangs_over_the_edge(
    page: Page, server: ServerProcess
) -> None:
    open_page(page, server)
    set_longest(page, 30)
    question = "What is the capital of France?"  # nonsense of many tokens follows
    ask(page, question)
    expect(page.locator(".turn.user")).to_have_text(question)
    expect(page.locator(".facts")).to_contain_text(re.compile(r"^\d+ tokens · [\d.]+ tokens/s"))
    wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    assert not wide
    page.keyboard.press("Alt+n")
    expect(page.get_by_role("heading", name="What would you like to know?")).to_be_visible()
    expect(page.locator(".turn")).to_have_count(0)


def test_thinking_is_folded_away_from_the_answer_and_not_sent_back(
    page: Page, memorised: ServerProcess
) -> None:
    open_page(page, memorised)
    set_longest(page, 100)
    ask(page, "Capital of France?")
    turn = page.locator(".turn.assistant").last
    expect(turn.locator(".facts")).to_contain_text("tokens")
    expect(turn.locator(".text")).to_have_text(FRANCE)
    thinking = turn.locator(".thinking div")
    expect(thinking).to_be_hidden()
    turn.get_by_text("Thinking").click()
    expect(thinking).to_be_visible()
    expect(thinking).to_have_text(FRANCE_THINKING)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "And?")
    turns = sent.value.post_data_json["messages"]
    assert [each["content"] for each in turns] == ["Capital of France?", FRANCE, "And?"]


def test_escape_stops_an_answer_and_its_blocks_become_free(
    page: Page, server: ServerProcess
) -> None:
    open_page(page, server)
    ask(page, "Hello")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("#blocks")).to_contain_text("64 of 64")


def test_what_the_server_refuses_is_shown_and_can_be_tried_again(
    page: Page, server: ServerProcess
) -> None:
    open_page(page, server)
    ask(page, "many words " * 2000)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("at most 512 tokens per request")
    alert.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(1)


def test_text_never_becomes_markup(page: Page, server: ServerProcess) -> None:
    open_page(page, server)
    found: dict[str, Any] = page.evaluate(
        """async (text) => {
            const { render } = await import("/markdown.js");
            const box = document.createElement("div");
            box.append(render(text));
            document.body.append(box);
            await new Promise((done) => setTimeout(done, 50));
            return {
                elements: [...new Set([...box.querySelectorAll("*")].map((e) => e.localName))],
                links: [...box.querySelectorAll("a")].map((a) => a.getAttribute("href")),
                text: box.textContent,
                hacked: window.hacked ?? null,
            };
        }""",
        HOSTILE,
    )
    assert found["hacked"] is None
    assert not {"script", "img", "b", "i"} & set(found["elements"])
    assert {"strong", "code", "pre", "a"} <= set(found["elements"])
    assert found["links"] == ["https://example.org/a"]
    assert '<img src=x onerror="window.hacked = 1">' in found["text"]


def test_a_server_with_a_key_asks_for_it_and_then_answers(
    page: Page, guarded: ServerProcess
) -> None:
    page.goto(f"{guarded.url}/")
    key = page.get_by_label("API key")
    expect(key).to_be_focused()
    key.fill(API_KEY)
    page.get_by_role("button", name="Done").click()
    expect(page.locator("#blocks")).to_contain_text("blocks free")
    set_longest(page, 3)
    ask(page, "Hello")
    expect(page.locator(".facts")).to_contain_text("3 tokens")
