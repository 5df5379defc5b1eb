"""From what a request names to media that the engine takes: fetched, decoded, cut into patches.

Owns the threads in which that is done, so that neither the event loop nor the engine's steps wait
for a picture, and what was made of the last ones, so that one sent again is not decoded again.
Called by `service`. All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from qwen_engine.encoder_cache import check_num_tokens
from qwen_engine.errors import InvalidMediaError
from qwen_engine.host_memory import return_free_memory
from qwen_engine.server.media_fetch import MediaFetcher
from qwen_engine.server.protocol.content import MediaRef
from qwen_engine.server.settings import MIB
from qwen_engine.server.together import together
from qwen_engine.vision.images import read_image
from qwen_engine.vision.media import Media, MediaKind, media_key
from qwen_engine.vision.settings import ProcessorSettings
from qwen_engine.vision.video import process_frames, process_video

Result = TypeVar("Result")

# Of each kind. Decoding takes a core each and up to 200 MB; the engine needs the other cores.
MAX_THREADS = 4
# Of one request: others' pictures come between, and slow addresses do not hold up its own.
ITEMS_AT_ONCE = 8
MAX_REQUEST_BYTES = 256 * MIB  # encoded
KEPT_BYTES = 64 * MIB  # patches of pictures that may come again
# Without media to read before what decoding took goes back to the system: the allocator would keep
# up to 100 MB of it, in pieces.
QUIET_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Opened:
    """An item of which is known what it costs, not yet decoded."""

    kind: MediaKind
    key: bytes
    num_tokens: int  # 0 where only decoding tells: videos
    decode: Callable[[], Media]


class MediaReader:
    """Reads the media of requests, within the server's bounds.

    limits: of each kind in a request; a kind that is not named is bounded by `max_model_len`.
    max_tokens: of one request's media together.
    """

    def __init__(
        self,
        fetcher: MediaFetcher,
        settings: ProcessorSettings,
        *,
        limits: Mapping[str, int],
        max_tokens: int,
        max_model_len: int,
    ) -> None:
        self._fetcher = fetcher
        self._settings = settings
        least = max(1, settings.min_pixels // settings.factor**2)
        self._limits = {kind: max(1, max_model_len // least) for kind in ("image", "video")}
        self._limits |= limits
        self._max_tokens = max_tokens
        self._kept = _Kept(KEPT_BYTES)
        self._num_reading = 0
        self._quiet: asyncio.TimerHandle | None = None
        cores = len(os.sched_getaffinity(0))
        number = max(1, min(MAX_THREADS, cores // 2))
        # Apart: a video takes up to a minute, in which pictures must not wait.
        self._threads: dict[MediaKind, ThreadPoolExecutor] = {
            kind: ThreadPoolExecutor(max_workers=number, thread_name_prefix=kind)
            for kind in ("image", "video")
        }

    @property
    def limits(self) -> Mapping[str, int]:
        """How many of each kind a request may have."""
        return self._limits

    async def read(
        self, refs: Sequence[MediaRef], changes: Mapping[str, Any] | None
    ) -> list[Media]:
        """Return the media of one request, in its order.

        changes: the request's `mm_processor_kwargs`.

        Raises:
            RequestError: what cannot be fetched or read, is too much, or names no setting.
        """
        param = "mm_processor_kwargs"
        settings = self._settings.changed(changes, param=param).within(self._settings, param=param)
        self._check_number(refs)
        self._begin()
        try:
            return await self._read(refs, settings)
        finally:
            self._end()

    async def _read(self, refs: Sequence[MediaRef], settings: ProcessorSettings) -> list[Media]:
        reading = _Reading(self._fetcher, settings, self._in_thread)
        opened = await together(reading.open(ref) for ref in refs)
        unique = {each.key: each for each in opened}
        self._check_num_tokens(refs, unique.values())
        found = await together(self._decode(reading, each) for each in unique.values())
        self._check_num_tokens(refs, found)  # with those of videos, now that they are known
        media = dict(zip(unique, found, strict=True))
        return [media[each.key] for each in opened]

    def close(self) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        self._num_reading += 1
        if self._quiet is not None:
            self._quiet.cancel()

    def _end(self) -> None:
        self._num_reading -= 1
        if not self._num_reading:
            loop = asyncio.get_running_loop()
            self._quiet = loop.call_later(
                QUIET_SECONDS, self._threads["image"].submit, return_free_memory
            )

    def _check_number(self, refs: Sequence[MediaRef]) -> None:
        for kind, limit in self._limits.items():
            same = [ref for ref in refs if ref.kind == kind]
            if len(same) > limit:
                raise InvalidMediaError(
                    same[limit].item,
                    f"{len(same)} {kind}s in one request; this server takes at most {limit} "
                    "(--limit-mm-per-prompt)",
                )

    def _check_num_tokens(
        self, refs: Sequence[MediaRef], items: Iterable[_Opened] | Iterable[Media]
    ) -> None:
        num_tokens = sum(item.num_tokens for item in items)
        if num_tokens:
            field = re.split(r"[.\[]", refs[0].item)[0]
            check_num_tokens(num_tokens, max_tokens=self._max_tokens, item=field)

    async def _decode(self, reading: _Reading, opened: _Opened) -> Media:
        media = self._kept.get(opened.key)
        if media is None:
            media = await reading.decode(opened)
            self._kept.put(opened.key, media)
        return media

    async def _in_thread(self, work: Callable[[], Result], kind: MediaKind = "image") -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads[kind], work)


class _Reading:
    """The reading of one request's media: its settings and what it may still take."""

    def __init__(
        self, fetcher: MediaFetcher, settings: ProcessorSettings, in_thread: Callable[..., Any]
    ) -> None:
        self._fetcher = fetcher
        self._settings = settings
        self._in_thread = in_thread
        self._gate = asyncio.Semaphore(ITEMS_AT_ONCE)
        self._num_bytes = 0

    async def open(self, ref: MediaRef) -> _Opened:
        """Fetch an item and read its header."""
        if len(ref.urls) > self._settings.max_frames:
            most = self._settings.max_frames
            raise InvalidMediaError(
                ref.item, f"has {len(ref.urls)} frames; at most {most} are taken"
            )
        async with self._gate:
            contents = []
            for index, url in enumerate(ref.urls):
                item = f"{ref.item}[{index}]" if ref.is_frames else ref.item
                contents.append(await self._load(url, item))
            opened: _Opened = await self._in_thread(lambda: _open(ref, contents, self._settings))
            return opened

    async def decode(self, opened: _Opened) -> Media:
        async with self._gate:
            media: Media = await self._in_thread(opened.decode, opened.kind)
            return media

    async def _load(self, url: str, item: str) -> bytes:
        content: bytes
        if url[:5].lower() == "data:":  # megabytes of base64 take the event loop too long
            content = await self._in_thread(lambda: self._fetcher.decode(url, item=item))
        else:
            content = await self._fetcher.fetch(url, item=item)
        self._num_bytes += len(content)
        if self._num_bytes > MAX_REQUEST_BYTES:
            raise InvalidMediaError(
                item, f"with it this request has more than the {MAX_REQUEST_BYTES:,} bytes of "
                "pictures and videos that are taken: send several requests",
            )  # fmt: skip
        return content


class _Kept:
    """What was made of the last pictures, up to so many bytes; the longest unused goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._entries: OrderedDict[bytes, Media] = OrderedDict()

    def get(self, key: bytes) -> Media | None:
        media = self._entries.get(key)
        if media is not None:
            self._entries.move_to_end(key)
        return media

    def put(self, key: bytes, media: Media) -> None:
        if key in self._entries:
            return
        self._entries[key] = media
        self._left -= media.patches.nbytes
        while self._left < 0:
            _, oldest = self._entries.popitem(last=False)
            self._left += oldest.patches.nbytes


def _open(ref: MediaRef, contents: list[bytes], settings: ProcessorSettings) -> _Opened:
    """Read a picture's header; of a video, only what makes it the same as another."""
    item = ref.item
    if ref.kind == "image":
        file = read_image(contents[0], settings.with_detail(ref.detail), item=item)
        num_tokens = file.size[0] * file.size[1] // settings.factor**2
        return _Opened("image", file.key, num_tokens, file.decode)
    form = (f"frames at {ref.fps}" if ref.is_frames else "file", 0, 0)
    key = media_key("video", contents, form=form, settings=settings)

    def decode() -> Media:
        if ref.is_frames:
            return process_frames(contents, settings, item=item, fps=ref.fps)
        return process_video(contents[0], settings, item=item)

    return _Opened("video", key, 0, decode)
