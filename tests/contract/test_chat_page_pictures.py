"""Pictures and videos on the chat page: picked, pasted, dropped, removed, refused, sent."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.contract.media_server import MediaServer
from tests.contract.server_process import ServerProcess
from tests.contract.test_chat_page import ask, open_page, set_longest
from tests.unit import pictures
from tests.unit.pictures import encoded, noise

pytestmark = pytest.mark.browser
on_phone = pytest.mark.parametrize("page", [(390, 844)], indirect=True)
on_desktop = pytest.mark.parametrize("page", [(1200, 800)], indirect=True)

PICTURE = encoded(noise(96, 64))
# Makes a file of base64 in the page, as a clipboard or a drag would carry it.
TRANSFER = """
    ([content, name, type]) => {
      const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
      const transfer = new DataTransfer();
      transfer.items.add(new File([bytes], name, { type }));
      return transfer;
    }
"""


def file(name: str, content: bytes = PICTURE, kind: str = "image/png") -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": content}


def pick(page: Page, *files: FilePayload) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add pictures or videos").click()
    chooser.value.set_files(list(files))


def carry(page: Page, event: str, selector: str) -> None:
    """Paste or drop a picture."""
    transfer = page.evaluate_handle(
        TRANSFER, [base64.b64encode(PICTURE).decode(), f"{event}.png", "image/png"]
    )
    field = "clipboardData" if event == "paste" else "dataTransfer"
    page.evaluate(
        "([event, field, selector, transfer]) => document.querySelector(selector).dispatchEvent("
        "new (event === 'paste' ? ClipboardEvent : DragEvent)(event, "
        "{ [field]: transfer, bubbles: true, cancelable: true }))",
        [event, field, selector, transfer],
    )


def kinds(body: Any) -> list[list[str]]:
    """Return the kinds of parts of each message."""
    contents = [message["content"] for message in body["messages"]]
    return [[part["type"] for part in x] if isinstance(x, list) else ["text"] for x in contents]


def test_pictures_are_picked_pasted_and_dropped_and_seen_by_the_model(
    page: Page, seeing: MediaServer
) -> None:
    open_page(page, seeing)
    set_longest(page, 4)
    expect(page.locator("#welcome-text")).to_contain_text("24.8 MB in all")
    clip = pictures.video("webm", "libvpx", num_frames=10)
    pick(page, file("a.png"), file("b.webm", clip, "video/webm"), file("c.png"))
    carry(page, "paste", "#input")
    carry(page, "drop", "#log")
    thumbs = page.locator("#attached .thumb")
    expect(thumbs).to_have_count(5)
    page.get_by_role("button", name="Remove c.png").click()
    expect(thumbs).to_have_count(4)
    wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    assert not wide
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "What is it?")
    parts = ["image_url", "video_url", "image_url", "image_url", "text"]
    assert kinds(sent.value.post_data_json) == [parts]
    first = sent.value.post_data_json["messages"][0]["content"][0]["image_url"]["url"]
    assert base64.b64decode(first.removeprefix("data:image/png;base64,")) == PICTURE
    expect(page.locator(".turn.assistant .facts")).to_contain_text(re.compile("^[1-4] token"))
    expect(page.locator(".turn.user img")).to_have_count(3)
    expect(page.locator(".turn.user video")).to_have_count(1)
    expect(thumbs).to_have_count(0)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "And now?")
    assert kinds(sent.value.post_data_json) == [parts, ["text"], ["text"]]


@on_phone
def test_a_picture_needs_no_words(page: Page, seeing: MediaServer) -> None:
    open_page(page, seeing)
    set_longest(page, 2)
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    pick(page, file("a.png"))
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn.assistant .facts")).to_contain_text("token")


@on_phone
def test_what_the_server_would_refuse_is_said_before_it_is_sent(
    page: Page, seeing: MediaServer
) -> None:
    models = json.loads(seeing.get("/v1/models"))
    models["data"][0]["media"]["max_request_bytes"] = 1_000_000
    page.route("**/v1/models", lambda route: route.fulfill(json=models))
    open_page(page, seeing)
    note = page.locator("#attach-note")
    pick(page, file("large.png", bytes(900_000)))
    expect(note).to_contain_text("large.png is too large, 0.9 MB: 0.7 MB of 0.7 MB are left")
    pick(page, file("notes.pdf", b"x", "application/pdf"))
    expect(note).to_contain_text("notes.pdf is neither a picture nor a video")
    pick(page, file("a.svg", b"<svg/>", "image/svg+xml"))
    expect(note).to_contain_text("save it as PNG")
    pick(page, *[file(f"{number}.png") for number in range(7)])
    expect(note).to_contain_text("6.png is too many: one conversation takes 6 pictures")
    expect(page.locator("#attached .thumb")).to_have_count(6)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#attached .thumb")).to_have_count(0)
    expect(note).to_be_hidden()


@on_desktop
def test_a_broken_picture_is_told_by_the_server_and_the_conversation_goes_on(
    page: Page, seeing: MediaServer
) -> None:
    open_page(page, seeing)
    set_longest(page, 2)
    pick(page, file("a.png", PICTURE[:200]))
    ask(page, "What is it?")
    expect(page.locator(".failure")).to_contain_text("damaged or cut short")
    ask(page, "Hello")
    expect(page.locator(".turn.assistant .facts")).to_contain_text("token")


@on_desktop
def test_a_model_of_text_takes_no_pictures(page: Page, server: ServerProcess) -> None:
    open_page(page, server)
    expect(page.get_by_role("button", name="Add pictures or videos")).to_be_hidden()
    carry(page, "drop", "#log")
    expect(page.locator("#attach-note")).to_have_text("This model reads text only.")
