"""What decoding took goes back to the system once nobody sends pictures."""

import asyncio
import base64

import pytest

from qwen_engine.server import media
from qwen_engine.server.media import MediaReader
from qwen_engine.server.media_fetch import FetchPolicy, MediaFetcher
from qwen_engine.server.protocol.content import MediaRef
from qwen_engine.vision.settings import ProcessorSettings
from tests.unit.pictures import encoded, noise

QUIET_SECONDS = 0.2


def picture(seed: int) -> MediaRef:
    content = base64.b64encode(encoded(noise(64, 64, seed=seed))).decode()
    return MediaRef(kind="image", item="it", urls=(f"data:image/png;base64,{content}",))


async def test_memory_is_given_back_once_when_no_picture_came_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_back: list[None] = []
    monkeypatch.setattr(media, "return_free_memory", lambda: given_back.append(None))
    monkeypatch.setattr(media, "QUIET_SECONDS", QUIET_SECONDS)
    async with MediaFetcher(FetchPolicy()) as fetcher:
        reader = MediaReader(
            fetcher, ProcessorSettings(), limits={}, max_tokens=1000, max_model_len=1000
        )
        try:
            for seed in range(4):
                await reader.read([picture(seed)], None)
                await asyncio.sleep(QUIET_SECONDS / 4)
                assert not given_back
            await asyncio.sleep(3 * QUIET_SECONDS)
            assert len(given_back) == 1
            await reader.read([picture(9)], None)
        finally:
            reader.close()
        await asyncio.sleep(2 * QUIET_SECONDS)
        assert len(given_back) == 1
