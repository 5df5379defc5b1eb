"""The chat page in a real browser, against a tiny model: its controls, and what it must not do."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.contract.conftest import API_KEY
from tests.contract.media_server import MediaServer
from tests.contract.server_process import ServerProcess
from tests.models.dialogues import FRANCE, FRANCE_THINKING

pytestmark = pytest.mark.browser

HOSTILE = """\
<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">
**<b onclick=alert(1)>bold</b>** [link](javascript:window.hacked=1) [good](https://example.org/a)
`<i>code</i>`

```html
<script>window.hacked = 1</script>
```"""


def open_page(page: Page, server: ServerProcess | MediaServer) -> None:
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


def keep_talking(page: Page) -> None:
    """Have answers go on to the longest allowed: nonsense may end after any word."""

    def change(route: Route) -> None:
        asked = {**route.request.post_data_json, "ignore_eos": True}
        route.continue_(post_data=json.dumps(asked))

    page.route("**/v1/chat/completions", change)


def test_an_answer_is_streamed_with_its_rate_and_nothing_hangs_over_the_edge(
    page: Page, server: ServerProcess
) -> None:
    open_page(page, server)
    keep_talking(page)
    set_longest(page, 400)  # of what comes within 20 ms the page tells no rate
    question = "What is the capital of France?"
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
    keep_talking(page)
    ask(page, "Hello")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("#blocks")).to_contain_text("64 of 64")


def cells(page: Page, kind: str) -> int:
    return page.locator(f"#cells i.{kind}").count()


def number(page: Page, kind: str) -> int:
    return int(page.locator(f"#pool-{kind}").inner_text())


def test_the_block_pool_is_watched_by_keyboard_alone(page: Page, server: ServerProcess) -> None:
    """The server's numbers, made larger on their way so that every kind of block is there."""
    stats = server.get("/stats")[1]
    busy = {
        "num_used_gpu_blocks": 10, "num_cached_gpu_blocks": 20, "num_requests_running": 3,
        "num_total_cpu_blocks": 40, "num_used_cpu_blocks": 4, "num_requests_swapped": 1,
    }  # fmt: skip
    shown = dict(stats)
    page.route("**/stats", lambda route: route.fulfill(json=shown))
    open_page(page, server)
    page.keyboard.press("Alt+b")
    panel = page.get_by_role("region", name="Block pool")
    expect(panel).to_be_visible()
    expect(page.locator("#pool-facts")).to_contain_text("16 tokens in a block · 0 running")
    assert cells(page, "used") == number(page, "used") == 0
    assert cells(page, "cached") + cells(page, "free") == 64
    expect(page.locator("#swap")).to_be_hidden()
    shown.update(busy)
    expect(page.locator("#pool-used")).to_have_text("10")
    assert [cells(page, kind) for kind in ("used", "cached", "free")] == [10, 20, 34]
    assert [number(page, kind) for kind in ("used", "cached", "free")] == [10, 20, 34]
    expect(page.locator("#blocks")).to_contain_text("54 of 64 blocks free")
    expect(page.locator("#pool-swapped")).to_have_text("4 of 40")
    assert page.locator("#swap-cells i.used").count() == 4
    expect(page.locator("#pool-facts")).to_contain_text("3 running · 0 waiting · 1 swapped out")
    assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()


def test_an_answer_can_be_written_again_in_place_of_the_old_one(
    page: Page, server: ServerProcess
) -> None:
    open_page(page, server)
    set_longest(page, 4)
    ask(page, "First")
    ask_again = page.get_by_role("button", name="Write again")
    expect(ask_again).to_have_count(1)
    ask(page, "Second")
    expect(page.locator(".turn.assistant .facts")).to_have_count(2)
    expect(ask_again).to_have_count(1)
    for press in (ask_again.click, lambda: page.keyboard.press("Alt+r")):
        with page.expect_request("**/v1/chat/completions") as sent:
            press()
        turns = sent.value.post_data_json["messages"]
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
        assert turns[-1]["content"] == "Second"
        expect(page.locator(".turn.assistant .facts")).to_have_count(2)
        expect(page.locator(".turn.user")).to_have_count(2)


def test_thinking_can_be_turned_off_in_the_settings(page: Page, memorised: ServerProcess) -> None:
    open_page(page, memorised)
    set_longest(page, 100)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Thinking").select_option("off")
    page.get_by_role("button", name="Done").click()
    ask(page, "Capital of France?")
    expect(page.locator(".turn.assistant .facts")).to_contain_text("tokens")
    expect(page.locator(".turn.assistant .text")).to_have_text("Paris.")
    expect(page.locator(".thinking")).to_have_count(0)


def test_tables_and_rules_are_drawn(page: Page, server: ServerProcess) -> None:
    open_page(page, server)
    found = page.evaluate(
        """async (text) => {
            const { render } = await import("/markdown.js");
            const box = document.createElement("div");
            box.append(render(text));
            const words = (name) => [...box.querySelectorAll(name)].map((e) => e.textContent);
            return {
                head: words("th"), cells: words("td"), rules: words("hr").length,
                right: words("td.right"), rest: words("p"),
            };
        }""",
        "a | b is no table\n\n| City | *People* |\n|---|--:|\n| Paris | 2 |\n| Rome |\n\n---\nend",
    )
    assert found == {
        "head": ["City", "People"], "cells": ["Paris", "2", "Rome", ""], "rules": 1,
        "right": ["2", ""], "rest": ["a | b is no table", "end"],
    }  # fmt: skip


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
