"""Videos are sampled, timed and sized as in transformers; broken ones are refused by a sentence."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from qwen_engine.errors import InvalidMediaError
from qwen_engine.vision.media import Media
from qwen_engine.vision.settings import ProcessorSettings
from qwen_engine.vision.video import choose_frames, frame_times, process_frames, process_video
from tests.unit.pictures import encoded, noise, sound, video

SETTINGS = ProcessorSettings()


def greys(media: Media) -> list[list[float]]:
    """Return the mean of each picture, by frame."""
    patches = np.frombuffer(media.patches, dtype=np.uint8).reshape(media.grid[0], -1, 3, 2, 256)
    means: list[list[float]] = patches.mean((1, 2, 4)).tolist()
    return means


def refusal(data: bytes) -> str:
    with pytest.raises(InvalidMediaError) as caught:
        process_video(data, SETTINGS, item="video_url")
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "codec", "pixel_format"),
    [
        ("mp4", "libx264", "yuv420p"),
        ("webm", "libvpx", "yuv420p"),
        ("gif", "gif", "rgb8"),
        ("avi", "mpeg4", "yuv420p"),
    ],
)
def test_two_frames_a_second_are_taken_and_timed(kind: str, codec: str, pixel_format: str) -> None:
    media = process_video(video(kind, codec, pixel_format=pixel_format), SETTINGS, item="v")
    # 30 frames at 10 a second: 0, 6, 12, 17, 23, 29, two by two
    assert media.timestamps == pytest.approx((0.3, 1.45, 2.6))
    assert media.grid == (3, 2, 4)
    expected = [[0, 48], [96, 136], [184, 232]]
    assert np.abs(np.array(greys(media)) - expected).max() < 6


def test_an_odd_number_of_frames_is_padded_with_the_last() -> None:
    media = process_video(video(num_frames=5), SETTINGS, item="v")
    assert len(choose_frames(5, 10, SETTINGS)) == 4
    media = process_video(video(num_frames=3), SETTINGS, item="v")
    assert media.grid[0] == 2
    last = greys(media)[-1]
    assert last[0] == last[1]
    assert media.timestamps == pytest.approx((0.05, 0.2))


def test_a_single_frame_is_shown_twice() -> None:
    media = process_video(video(num_frames=1), SETTINGS, item="v")
    assert media.grid[0] == 1
    assert media.timestamps == (0.0,)


def test_frames_are_chosen_within_the_bounds() -> None:
    assert choose_frames(3, 24.0, SETTINGS) == [0, 1, 2]
    assert len(choose_frames(240, 24.0, SETTINGS)) == 20
    assert len(choose_frames(10**6, 24.0, SETTINGS)) == 768
    few = SETTINGS.changed({"num_frames": 5}, param="p")
    assert choose_frames(100, 24.0, few) == [0, 25, 50, 74, 99]


def test_times_are_the_mean_of_first_and_last() -> None:
    assert frame_times([0.0, 0.5, 1.0], 2) == (0.25, 1.0)


def test_a_telephones_rotation_is_followed() -> None:
    data = video(num_frames=4)
    one, minus_one, zero, last = (struct.pack(">i", x) for x in (65536, -65536, 0, 2**30))
    identity = one + zero * 3 + one + zero * 3 + last
    # ISO 14496-12, 6.2.2: x' = -y, y' = x; in the movie's header first, then in the track's
    clockwise = zero + one + zero + minus_one + zero * 4 + last
    start = data.index(identity, data.index(b"tkhd"))
    turned = process_video(
        data[:start] + clockwise + data[start + len(identity) :], SETTINGS, item="v"
    )
    assert turned.grid == (2, 4, 2)


def test_pictures_can_be_given_as_frames() -> None:
    frames = [encoded(Image.new("L", (64, 32), 10 * index)) for index in range(5)]
    media = process_frames(frames, SETTINGS, item="video")
    assert media.grid == (3, 2, 4)
    assert media.timestamps == (0.25, 1.25, 2.0)  # two a second
    assert greys(media)[0] == [0, 10]
    slower = process_frames(frames, SETTINGS, item="video", fps=1)
    assert slower.timestamps == (0.5, 2.5, 4.0)
    assert slower.key != media.key
    with pytest.raises(InvalidMediaError, match=r"video\[1\]: is empty"):
        process_frames([frames[0], b""], SETTINGS, item="video")
    with pytest.raises(InvalidMediaError, match="0 frames"):
        process_frames([], SETTINGS, item="video")


def test_how_frames_are_split_changes_the_key() -> None:
    first, second = encoded(noise(32, 32)), encoded(noise(32, 32, seed=1))
    one = process_frames([first, second], SETTINGS, item="v")
    other = process_frames([second, first], SETTINGS, item="v")
    assert one.key != other.key


def test_what_is_no_video_is_refused() -> None:
    whole = video("mp4", "libx264")
    assert "0 bytes" in refusal(b"")
    assert "not a video" in refusal(b"\0" * 5000)
    assert "not a video" in refusal(whole[: len(whole) // 2])
    assert "no video in it" in refusal(sound())


@pytest.mark.parametrize(
    "playlist",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10.0,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
    ],
)
def test_a_playlist_cannot_make_the_server_read_its_disk(playlist: bytes) -> None:
    assert "not a video" in refusal(playlist)


def test_a_video_that_takes_too_long_to_decode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen_engine.vision.video.MAX_DECODED_PIXELS", 60_000)
    assert "too much to decode" in refusal(video(num_frames=30))


def test_damage_anywhere_never_gives_anything_but_a_refusal() -> None:
    data, rng = video("mp4", "libx264", num_frames=8), np.random.default_rng(2)
    for _ in range(20):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 20):
            damaged[place] = rng.integers(0, 256)
        with suppress(InvalidMediaError):
            assert process_video(bytes(damaged), SETTINGS, item="v").num_tokens > 0
