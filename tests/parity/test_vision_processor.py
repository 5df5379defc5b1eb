"""Pictures become the patches of transformers' own processor, whatever their size."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import (
    Qwen3VLVideoProcessor,
    smart_resize,
)

from qwen_engine.vision.images import read_image, resize
from qwen_engine.vision.settings import ProcessorSettings
from qwen_engine.vision.sizes import RatioError, image_size, video_size
from qwen_engine.vision.video import choose_frames, frame_times
from tests.unit.pictures import encoded, noise

SETTINGS = ProcessorSettings()
SIZES = [(1, 1), (2, 3), (16, 17), (3, 500), (400, 3), (48, 80), (448, 448), (333, 777), (1000, 60)]


def processor(settings: ProcessorSettings) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": settings.min_pixels, "longest_edge": settings.max_pixels},
        patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_patches_are_within_a_grey_level(size: tuple[int, int], mode: str) -> None:
    image = noise(*size)
    if mode == "RGBA":
        image.putalpha(noise(*size, seed=1).convert("L"))
    image = image.convert(mode)
    ours = read_image(encoded(image), SETTINGS, item="x").decode()
    theirs = processor(SETTINGS)(image, return_tensors="np")
    assert list(ours.grid) == theirs["image_grid_thw"][0].tolist()
    pixels = np.frombuffer(ours.patches, dtype=np.uint8).reshape(-1, 3, 1, 256)
    expected = theirs["pixel_values"].reshape(-1, 3, 2, 256) * 127.5 + 127.5
    assert np.abs(pixels - expected).max() < 0.01


@pytest.mark.parametrize("bounds", [(65_536, 16_777_216), (4_096, 100_000), (1, 1024)])
def test_token_counts_are_equal_for_every_size(bounds: tuple[int, int]) -> None:
    settings = SETTINGS.changed({"min_pixels": bounds[0], "max_pixels": bounds[1]}, param="p")
    upstream = processor(settings)
    rng = np.random.default_rng(3)
    sizes = np.exp(rng.uniform(0, np.log(20_000), (400, 2))).astype(int).tolist()
    for width, height in [*sizes, (3, 5000), (4000, 3), (20_000, 20_000), (1, 200), (1, 201)]:
        try:
            expected = upstream.get_number_of_image_patches(height, width)
        except ValueError:
            with pytest.raises(RatioError):
                image_size(width, height, settings)
            continue
        new_width, new_height = image_size(width, height, settings)
        assert new_width // 16 * (new_height // 16) == expected


def test_the_size_of_a_videos_frames_is_that_of_transformers() -> None:
    rng = np.random.default_rng(4)
    for _ in range(400):
        width, height = np.exp(rng.uniform(1, np.log(4_000), 2)).astype(int).tolist()
        count = int(rng.integers(2, 769))
        pixels = {"min_pixels": SETTINGS.video_min_pixels, "max_pixels": SETTINGS.video_max_pixels}
        try:
            expected = smart_resize(count, height, width, factor=32, **pixels)
        except ValueError:
            with pytest.raises(RatioError):
                video_size(count, width, height, SETTINGS)
            continue
        assert video_size(count, width, height, SETTINGS) == expected[::-1]


def test_frames_of_a_video_can_be_capped_as_in_the_original_release() -> None:
    capped = SETTINGS.changed({"cap_pixels_per_frame": True}, param="p")
    assert video_size(16, 1920, 1080, capped) == (1152, 640)


def test_frames_are_chosen_and_timed_as_in_transformers() -> None:
    defaults = SimpleNamespace(fps=2, min_frames=4, max_frames=768)
    calculate = Qwen3VLProcessor._calculate_timestamps
    for total, fps in [
        (1, 24.0),
        (7, 24.0),
        (30, 10.0),
        (100, 29.97),
        (5_000, 25.0),
        (90_000, 30.0),
    ]:
        metadata = SimpleNamespace(total_num_frames=total, fps=fps)
        expected = Qwen3VLVideoProcessor.sample_frames(defaults, metadata, fps=2).tolist()
        chosen = choose_frames(total, fps, SETTINGS)
        assert chosen == expected
        times = frame_times([index / fps for index in chosen], 2)
        assert list(times) == pytest.approx(calculate(None, expected, fps))


@pytest.mark.parametrize("target", [(96, 64), (320, 288)])
def test_resizing_is_within_a_grey_level_of_torchs(target: tuple[int, int]) -> None:
    """Published checkpoints name the torchvision processor, which resizes by this function."""
    image = noise(200, 150)
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]
    theirs = torch.nn.functional.interpolate(
        pixels, size=target[::-1], mode="bicubic", antialias=True
    )
    ours = resize(image, target)
    difference = theirs[0].permute(1, 2, 0).int() - torch.from_numpy(ours.copy()).int()
    assert difference.abs().max() <= 1


def test_one_pixel_is_a_picture() -> None:
    media = read_image(encoded(Image.new("RGB", (1, 1), "lime")), SETTINGS, item="x").decode()
    assert media.grid == (1, 16, 16)
    assert media.num_tokens == 64
