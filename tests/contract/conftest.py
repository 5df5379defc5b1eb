"""One server for the whole layer; tests that need special flags start their own."""

import shutil
from collections.abc import Callable, Iterator

import openai
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.contract.media_server import MediaServer
from tests.contract.server_process import ServerProcess
from tests.models.memorised import build_memorised
from tests.models.tiny import build_tiny

NAME = "tiny"
MAX_MODEL_LEN = 512
API_KEY = "secret"

# Without the last four Chromium calls home, which a closed network turns into errors.
_CHROMIUM_ARGUMENTS = [
    "--no-sandbox", "--no-proxy-server", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny Qwen3 that speaks noise, with little memory: 64 blocks of 16 tokens."""
    process = ServerProcess(
        tmp_path_factory.mktemp("server") / "log", str(build_tiny("qwen3-tied")),
        "--served-model-name", NAME, "alias", "--device", "cpu", "--dtype", "float32",
        "--max-model-len", str(MAX_MODEL_LEN), "--block-size", "16", "--max-num-seqs", "8",
        "--max-num-batched-tokens", "128", "--num-gpu-blocks-override", "64",
    )  # fmt: skip
    yield process.wait_ready()
    process.stop()


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a key, that runs one request at a time and lets one wait."""
    process = ServerProcess(
        tmp_path_factory.mktemp("guarded") / "log", str(build_tiny("qwen3-tied")),
        "--device", "cpu", "--served-model-name", NAME, "--max-num-seqs", "1", "--max-queue", "1",
        "--max-model-len", "512", "--num-gpu-blocks-override", "32", "--block-size", "16",
        env={"QWEN_API_KEY": API_KEY},
    )  # fmt: skip
    yield process.wait_ready()
    process.stop()


@pytest.fixture(scope="package")
def memorised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny Qwen3 with the real tokenizer and template, that knows its dialogues by heart."""
    process = ServerProcess(
        tmp_path_factory.mktemp("memorised") / "log", str(build_memorised()),
        "--served-model-name", NAME, "--device", "cpu", "--dtype", "float32",
        "--max-model-len", "2048", "--max-num-seqs", "8", "--num-gpu-blocks-override", "256",
        "--block-size", "16",
    )  # fmt: skip
    yield process.wait_ready()
    process.stop()


@pytest.fixture(scope="package")
def seeing() -> Iterator[MediaServer]:
    """A tiny Qwen3-VL, and a site with pictures."""
    with MediaServer() as server:
        yield server


@pytest.fixture
def talker(memorised: ServerProcess) -> Iterator[openai.OpenAI]:
    """The client of the memorised model."""
    with openai.OpenAI(base_url=f"{memorised.url}/v1", api_key="none", max_retries=0) as it:
        yield it


@pytest.fixture
def start_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., ServerProcess]]:
    """Start a server with the given flags; it ends with the test."""
    started: list[ServerProcess] = []

    def start(*words: str, env: dict[str, str] | None = None) -> ServerProcess:
        started.append(ServerProcess(tmp_path_factory.mktemp("own") / "log", *words, env=env))
        return started[-1]

    yield start
    for process in started:
        process.stop()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """The client that users have; without retries, so that errors are seen."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as it:
        yield it


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; of one module only, as the event loop behind it disturbs async tests."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium: `make install` as root gets it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_CHROMIUM_ARGUMENTS)
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
