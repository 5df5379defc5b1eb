"""`python -m tests.bench.vision`: pictures to patches to embeddings, beside transformers.

Same pictures, same weights, same threads, turn by turn in one process; prints the medians and how
many times faster ours is. The tower has the 2B's shape with random weights, in float32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from io import BytesIO
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from qwen_engine.models.vision import Pixels, VisionTower
from qwen_engine.planning.vision import VisionShape, parse_vision_config
from qwen_engine.vision.images import read_image
from qwen_engine.vision.settings import ProcessorSettings

SETTINGS = ProcessorSettings()
TOWER: dict[str, Any] = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
    "out_hidden_size": 2048, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
# Rows and columns of patches: 448² and 1920×1080 as it is resized.
TOWER_WORK = {"1 × 448²": [(28, 28)], "4 × 448²": [(28, 28)] * 4, "16 × 448²": [(28, 28)] * 16,
              "1920×1080": [(68, 120)]}  # fmt: skip

Work = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.vision", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", default="", help="only rows whose name has this in it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| work | ours, ms | transformers, ms | times faster |\n|---|---|---|---|")
    rows = [*preprocessing_rows(), *tower_rows(arguments.rows)]
    for name, ours, theirs in rows:
        if arguments.rows in name:
            a, b = _measure(ours, theirs, arguments.repeats)
            print(f"| {name} | {a:.0f} | {b:.0f} | {b / a:.2f} |", flush=True)


def preprocessing_rows() -> list[tuple[str, Work, Work]]:
    from transformers import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": SETTINGS.min_pixels, "longest_edge": SETTINGS.max_pixels},
        patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip
    photo = _picture(4000, 3000)
    files = {
        "12-megapixel JPEG": [_encoded(photo, "JPEG")],
        "1920×1080 PNG": [_encoded(photo.resize((1920, 1080)), "PNG")],
        "20 thumbnails": [_encoded(photo.resize((160 + n, 120)), "JPEG") for n in range(20)],
    }

    def ours(data: list[bytes]) -> Work:
        return lambda: [read_image(each, SETTINGS, item="").decode() for each in data]

    def theirs(data: list[bytes]) -> Work:
        return lambda: processor([_opened(each) for each in data], return_tensors="pt")

    return [(name, ours(data), theirs(data)) for name, data in files.items()]


def tower_rows(wanted: str) -> list[tuple[str, Work, Work]]:
    if not any(wanted in name for name in TOWER_WORK):
        return []
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    vision = _shape()
    upstream = Qwen3VLVisionModel._from_config(
        Qwen3VLVisionConfig(**TOWER), attn_implementation="sdpa", dtype=torch.float32
    ).eval()
    tower = VisionTower.allocate(
        vision, mean=SETTINGS.mean, std=SETTINGS.std, dtype=torch.float32,
        device=torch.device("cpu"),
    )  # fmt: skip
    state = upstream.state_dict()
    for name, tensor in tower.checkpoint_tensors().items():
        tensor.data.copy_(state[name.removeprefix("model.visual.")])

    def ours(items: list[Pixels]) -> Work:
        return lambda: tower(items)

    def theirs(items: list[Pixels]) -> Work:
        pixels = torch.cat([i.values.expand(-1, -1, 2, -1).flatten(1) for i in items]) / 127.5 - 1
        grids = torch.tensor([item.grid for item in items])
        return lambda: upstream(pixels, grid_thw=grids)

    rows = {name: [_noise(*grid) for grid in grids] for name, grids in TOWER_WORK.items()}
    return [(name, ours(items), theirs(items)) for name, items in rows.items()]


@torch.inference_mode()
def _measure(ours: Work, theirs: Work, repeats: int) -> tuple[float, float]:
    """Return the medians in milliseconds, after one turn of each that does not count."""
    samples: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        for work, kept in zip((ours, theirs), samples, strict=True):
            start = time.perf_counter()
            work()
            if turn:
                kept.append(1000 * (time.perf_counter() - start))
    return median(samples[0]), median(samples[1])


def _shape() -> VisionShape:
    vision = parse_vision_config(
        {"vision_config": TOWER, "text_config": {"hidden_size": 2048, "num_hidden_layers": 28}}
    )
    assert vision is not None
    return vision


def _noise(rows: int, columns: int) -> Pixels:
    values = torch.randint(0, 256, (rows * columns, 3, 1, 256), dtype=torch.uint8)
    return Pixels(values, (1, rows, columns))


def _picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def _encoded(image: Image.Image, kind: str) -> bytes:
    stream = BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def _opened(data: bytes) -> Image.Image:
    return Image.open(BytesIO(data)).convert("RGB")


if __name__ == "__main__":
    main()
