"""Placeholders in a prompt become as many tokens as their pictures have.

Two steps, as the tokenizer stands between them: a video's times are text, and text is tokenised
together with what stands before it; the pads of a picture are added to the ids. Called by the
server once per request. Knows no numpy and no torch.

The times stand where the original release put them (transformers, models/qwen3_vl at commit
00709b8): each frame is `<12.5 seconds>`, start, pads, end, and these replace the template's own
start, pad, end. Transformers 5.24 replaces the pad alone and so leaves an outer pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qwen_engine.errors import InvalidMediaError
from qwen_engine.planning.vision import VisionTokens
from qwen_engine.vision.media import Media, MediaKind
from qwen_engine.vision.spans import Span

START, END = "<|vision_start|>", "<|vision_end|>"
VIDEO_PAD = "<|video_pad|>"
_VIDEO = re.compile("|".join(map(re.escape, (START + VIDEO_PAD + END, VIDEO_PAD))))


@dataclass(frozen=True, slots=True)
class MediaPrompt:
    """A prompt's ids with every pad in place, and its media in the order of their appearance."""

    token_ids: list[int]
    spans: tuple[Span, ...] = ()
    media: tuple[Media, ...] = ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(item.key for item in self.media)


def write_timestamps(text: str, videos: Sequence[Media], *, item: str = "prompt") -> str:
    """Replace each video's placeholder by its frames, each with its time and one pad.

    item: the field that the text came from, for the error.

    Raises:
        InvalidMediaError: there are not as many placeholders as videos.
    """
    _check_count(item, "video", len(_VIDEO.findall(text)), len(videos))
    remaining = iter(videos)
    return _VIDEO.sub(lambda _: _frames_text(next(remaining)), text)


def expand(
    token_ids: Sequence[int],
    media: Sequence[Media],
    tokens: VisionTokens,
    *,
    item: str = "prompt",
) -> MediaPrompt:
    """Put as many pads as each picture has tokens where now one stands.

    Images take the image pads in order, the frames of videos the video pads.

    Raises:
        InvalidMediaError: there are not as many placeholders as pictures.
    """
    waiting = {
        tokens.image: _frames(media, "image"),
        tokens.video: _frames(media, "video"),
    }
    _check_count(item, "image", token_ids.count(tokens.image), len(waiting[tokens.image]))
    _check_count(item, "video frame", token_ids.count(tokens.video), len(waiting[tokens.video]))
    if not media:
        return MediaPrompt(list(token_ids))
    feeds = {token: iter(frames) for token, frames in waiting.items()}
    ids: list[int] = []
    spans: list[Span] = []
    order: dict[int, int] = {}  # place in `media` → item, by first appearance
    for token in token_ids:
        if token not in feeds:
            ids.append(token)
            continue
        place, frame = next(feeds[token])
        number = order.setdefault(place, len(order))
        rows, columns = media[place].frame_tokens
        spans.append(Span(len(ids), rows, columns, number, frame * rows * columns))
        ids.extend([token] * (rows * columns))
    return MediaPrompt(ids, tuple(spans), tuple(media[place] for place in order))


def _frames(media: Sequence[Media], kind: MediaKind) -> list[tuple[int, int]]:
    """Return each frame as (place of its item, number within it)."""
    places = (place for place, item in enumerate(media) if item.kind == kind)
    return [(place, frame) for place in places for frame in range(media[place].grid[0])]


def _frames_text(video: Media) -> str:
    return "".join(_frame_texts(video))


def _frame_texts(video: Media) -> Iterator[str]:
    for seconds in video.timestamps:
        yield f"<{seconds:.1f} seconds>{START}{VIDEO_PAD}{END}"


def _check_count(item: str, what: str, placeholders: int, given: int) -> None:
    if placeholders == given:
        return
    if placeholders > given:
        way_out = f"give {placeholders - given} more, or take the pads out of the text"
    else:
        way_out = "take some away, or add placeholders (a chat template does so by itself)"
    raise InvalidMediaError(
        item, f"{placeholders} {what} placeholders for {given} {what}s: {way_out}"
    )
