"""Placeholders, spans, blocks' keys and chunks: what follows from where pictures stand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_engine.errors import InvalidMediaError
from qwen_engine.models.vision_tiles import TILE_PATCHES, cut_tiles
from qwen_engine.planning.vision import VisionTokens
from qwen_engine.vision.media import Media
from qwen_engine.vision.prompt import expand, write_timestamps
from qwen_engine.vision.spans import Span, block_keys, overlaps

TOKENS = VisionTokens(image=900, video=901, start=902, end=903)
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = IMAGE.replace("image", "video")


def picture(rows: int, columns: int, key: bytes = b"k") -> Media:
    return Media(
        kind="image",
        key=key,
        grid=(1, 2 * rows, 2 * columns),
        merge_size=2,
        patches=memoryview(b""),
    )


def clip(*times: float) -> Media:
    return Media(
        kind="video", key=b"v", grid=(len(times), 2, 4), merge_size=2, patches=memoryview(b""),
        timestamps=times,
    )  # fmt: skip


def test_each_pad_becomes_as_many_as_its_picture_has_tokens() -> None:
    prompt = expand([1, 902, 900, 903, 2, 900], [picture(2, 3), picture(1, 1)], TOKENS)
    assert prompt.token_ids == [1, 902, *[900] * 6, 903, 2, 900]
    assert prompt.spans == (Span(2, 2, 3, 0), Span(10, 1, 1, 1))


def test_images_and_videos_fill_their_own_pads_in_order_of_appearance() -> None:
    video, image = clip(0.5, 1.5), picture(1, 1)
    prompt = expand([901, 7, 901, 900], [image, video], TOKENS)
    assert prompt.token_ids == [901, 901, 7, 901, 901, 900]
    assert prompt.media == (video, image)
    assert prompt.spans == (Span(0, 1, 2, 0, 0), Span(3, 1, 2, 0, 2), Span(5, 1, 1, 1))


def test_a_videos_times_replace_the_whole_placeholder() -> None:
    text = write_timestamps(f"Look: {VIDEO} and {IMAGE}", [clip(0.25, 12.5)])
    assert text == (
        f"Look: <0.2 seconds>{VIDEO}<12.5 seconds>{VIDEO} and {IMAGE}"
    )  # fmt: skip
    assert write_timestamps("<|video_pad|>", [clip(3.0)]) == f"<3.0 seconds>{VIDEO}"


def test_a_prompt_without_pictures_stays_as_it_is() -> None:
    assert expand([1, 2, 3], [], TOKENS).token_ids == [1, 2, 3]


@pytest.mark.parametrize(("ids", "given", "message"), [
    ([900, 900], 1, "2 image placeholders for 1 images: give 1 more"),
    ([5], 2, "0 image placeholders for 2 images: take some away"),
    ([901], 0, "1 video frame placeholders for 0"),
])  # fmt: skip
def test_as_many_pictures_as_placeholders_must_be_given(
    ids: list[int], given: int, message: str
) -> None:
    with pytest.raises(InvalidMediaError, match=message):
        expand(ids, [picture(1, 1)] * given, TOKENS)
    with pytest.raises(InvalidMediaError, match="1 video placeholders for 0"):
        write_timestamps(VIDEO, [])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5000)), min_size=1, max_size=6))
def test_tiles_hold_every_patch_once_and_see_whole_frames(frames: list[tuple[int, int]]) -> None:
    sizes = [size for count, size in frames for _ in range(count)]
    starts = list(itertools.accumulate(sizes, initial=0))
    end = 0
    for tile in cut_tiles(frames):
        assert tile.rows.start == end
        end = tile.rows.stop
        assert end - tile.rows.start <= TILE_PATCHES
        assert tile.seen.start in starts
        assert tile.seen.stop in starts
        assert tile.seen.start <= tile.rows.start < end <= tile.seen.stop
        assert (end - tile.rows.start) % tile.num_frames == 0
    assert end == starts[-1]


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, list[Span]]:
    """Return a length and some spans in it."""
    spans: list[Span] = []
    position = draw(st.integers(0, 5))
    for item in range(draw(st.integers(0, 4))):
        rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        spans.append(Span(position, rows, columns, item, draw(st.integers(0, 3))))
        position = spans[-1].end + draw(st.integers(0, 5))
    return position + draw(st.integers(0, 4)), spans


@settings(max_examples=80)
@given(prompts(), st.integers(1, 9))
def test_however_a_prompt_is_cut_every_row_is_placed_once(
    prompt: tuple[int, list[Span]], size: int
) -> None:
    num_tokens, spans = prompt
    whole = {
        span.start + index: (span.item, span.first_row + index)
        for span in spans for index in range(span.num_tokens)
    }  # fmt: skip
    placed: dict[int, tuple[int, int]] = {}
    for start in range(0, num_tokens, size):
        for part in overlaps(spans, start, min(size, num_tokens - start)):
            for index in range(part.num_tokens):
                position = start + part.offset + index
                assert position not in placed
                placed[position] = (part.item, part.first_row + index)
    assert placed == whole


def test_blocks_differ_by_picture_and_by_its_place() -> None:
    keys = [b"a" * 32, b"b" * 32]
    same = block_keys([Span(3, 2, 2, 0)], keys, 0, 8)
    assert same == block_keys([Span(3, 2, 2, 0)], keys, 0, 8)
    assert same != block_keys([Span(3, 2, 2, 1)], keys, 0, 8)
    assert same != block_keys([Span(2, 2, 2, 0)], keys, 0, 8)  # one row earlier
    assert same != block_keys([Span(3, 2, 2, 0, 4)], keys, 0, 8)  # the next frame
    assert block_keys([Span(8, 2, 2, 0)], keys, 0, 8) == []
    two = block_keys([Span(0, 1, 2, 0), Span(2, 1, 2, 1)], keys, 0, 8)
    assert [tag for tag, _ in two] == ["media", "media"]
