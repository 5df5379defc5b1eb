"""Pictures and videos in what scripts ask of `LLM`: read and placed as the server does.

Called by `llm`. Where the server has addresses only, a script may hand over pictures of Pillow's,
under vLLM's names (`image_pil`, `multi_modal_data`).
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from qwen_engine.errors import InvalidRequestError
from qwen_engine.launch import Launched
from qwen_engine.server.protocol.content import MediaRef, parse_multi_modal_data, refuse_media
from qwen_engine.server.protocol.fields import Fields
from qwen_engine.vision.media import Media
from qwen_engine.vision.prompt import MediaPrompt, expand, write_timestamps


class ScriptMedia:
    """The media of scripts, within the bounds of the loaded engine."""

    def __init__(self, launched: Launched) -> None:
        self._launched = launched
        self._config = launched.config
        vision = launched.engine.model_config.vision
        self._tokens = vision.tokens if vision and self._config.encoder_cache_tokens else None

    def read(self, refs: Sequence[MediaRef], changes: Mapping[str, Any] | None) -> list[Media]:
        """Fetch and decode what is named, with `mm_processor_kwargs`.

        Raises:
            RequestError: it cannot be had or read, is too much, or this model cannot see.
        """
        if self._tokens is None:
            refuse_media(refs, changes)
        if not refs:
            return []
        # In a thread of its own: a notebook runs an event loop in this one.
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(lambda: asyncio.run(self._read(refs, changes))).result()

    def place(
        self, text: str, media: Sequence[Media], *, is_rendered: bool, item: str
    ) -> MediaPrompt:
        """Tokenise a prompt and put its media in their places.

        Raises:
            RequestError: not Unicode; or more media than places, or fewer.
        """
        if self._tokens is not None:
            videos = [each for each in media if each.kind == "video"]
            text = write_timestamps(text, videos, item=item)
        ids = self._launched.tokenizer.encode(text, add_special_tokens=not is_rendered)
        return self.place_ids(ids, media, item=item)

    def place_ids(self, ids: Sequence[int], media: Sequence[Media], *, item: str) -> MediaPrompt:
        """Put media in their places among token ids."""
        if self._tokens is None:
            return MediaPrompt(list(ids))
        return expand(ids, media, self._tokens, item=item)

    async def _read(
        self, refs: Sequence[MediaRef], changes: Mapping[str, Any] | None
    ) -> list[Media]:
        # Here, as the decoders are nothing that a script about text should load.
        from qwen_engine.server.media_opening import open_media

        async with AsyncExitStack() as stack:
            reader = await open_media(self._config, stack)
            return await reader.read(refs, changes)


def named_media(prompt: Mapping[str, Any], item: str) -> tuple[MediaRef, ...]:
    """Return what a prompt of `generate` has under multi_modal_data.

    Raises:
        RequestError: it is neither an address nor a picture, or of an unknown kind.
    """
    data = prompt.get("multi_modal_data")
    if isinstance(data, Mapping):
        data = {kind: _addressed(value) for kind, value in data.items()}
    return parse_multi_modal_data(Fields({"multi_modal_data": data}, item))


def with_addresses(messages: Sequence[Any]) -> list[Any]:
    """Return messages whose parts of the type image_pil are image_url, as the server knows them.

    Raises:
        InvalidRequestError: a part of that type without a picture.
    """
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Any, item: str) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    parts = [_part(part, f"{item}.content[{index}]") for index, part in enumerate(content)]
    return {**message, "content": parts}


def _part(part: Any, item: str) -> Any:
    if not isinstance(part, Mapping) or "image_pil" not in (part.get("type"), *part):
        return part
    url = _addressed(part.get("image_pil"))
    if not isinstance(url, str) or not url.startswith("data:"):
        raise InvalidRequestError(f"{item}.image_pil", url, "must be a picture of Pillow's")
    return {"type": "image_url", "image_url": url}


def _addressed(value: Any) -> Any:
    """Return a picture of Pillow's as a data address, each of a list; all else as it is."""
    if isinstance(value, list | tuple):
        return [_addressed(each) for each in value]
    if not hasattr(value, "getexif"):  # Pillow need not be there for text
        return value
    file = io.BytesIO()
    value.save(file, "TIFF", exif=value.getexif())  # any mode's pixels as they are
    return "data:image/tiff;base64," + base64.b64encode(file.getvalue()).decode()
