"""Chainlit's own page in a real browser, over the API: it works, and nothing was made for it."""

import os
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.cluster.polling import until
from tests.cluster.processes import tail
from tests.contract.server_process import ServerProcess
from tests.models.dialogues import CHINESE, FRANCE
from tests.setup.chainlit import chainlit_program

pytestmark = pytest.mark.browser

APP = Path(__file__).with_name("chainlit_app.py")


@pytest.fixture
def chainlit(memorised: ServerProcess, tmp_path: Path) -> Iterator[str]:
    """The address of a Chainlit that asks the memorised model."""
    program = chainlit_program()
    if not program.exists():
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end("Chainlit missing: `make test` gets it from PyPI")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", tmp_path / "log"
    environment = {
        **os.environ, "CHAINLIT_APP_ROOT": str(tmp_path), "NO_PROXY": "*",
        "OPENAI_BASE_URL": f"{memorised.url}/v1", "OPENAI_API_KEY": "none",
    }  # fmt: skip
    command = [str(program), "run", str(APP), "--headless", "--host", "127.0.0.1"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=output,
            stderr=output,
            env=environment,
            cwd=tmp_path,
        )

    def answers() -> bool:
        assert process.poll() is None, tail(log, lines=30)
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return bool(response.status == 200)
        except urllib.error.URLError:
            return False

    try:
        until(answers, what="Chainlit answers", within_seconds=60)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def test_chainlit_shows_answers_as_they_are_streamed(chainlit: str, browser: Browser) -> None:
    page = browser.new_page()
    page.route(lambda url: not url.startswith(chainlit), lambda route: route.abort())  # fonts
    frames: list[str] = []
    page.on("websocket", lambda it: it.on("framereceived", lambda data: frames.append(str(data))))

    def pieces(question: str, answer: str) -> int:
        frames.clear()
        page.goto(chainlit)
        page.locator("#chat-input").fill(question)
        page.locator("#chat-submit").click()  # which is possible once its socket is open
        shown = page.locator("[data-step-type=assistant_message] .message-content")
        expect(shown).to_have_text(answer, timeout=30_000)
        return sum('"stream_token"' in frame for frame in frames)

    # Tokens of so small a model may come together where the server is busy: then it is asked again.
    for dialogue in (("Capital of France?", FRANCE), ("法国的首都?", CHINESE)):
        until(lambda it=dialogue: pieces(*it) > 3, what="more pieces", within_seconds=60)  # type: ignore[misc]
    page.close()
