"""The vision towers that published models carry: their parameters, and the largest picture.

`TowerFacts` are for pricing only: Qwen2-VL, Qwen2.5-VL, Pixtral as in Mistral 3. Qwen3-VL's tower,
which runs here, is `vision`'s. Called by `shape` and `weights`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qwen_engine.planning.vision import VisionShape, parse_vision_config, vision_parameter_shapes

TowerKind = Literal["qwen2", "qwen2.5", "qwen3", "pixtral"]
# Tokens of the largest picture that the published processors let through: Qwen2(.5)-VL
# 12,845,056 pixels of 28 × 28 per token (preprocessor_config.json); Mistral 3: sides of 1,540.
_LARGEST_IMAGE_TOKENS: Mapping[TowerKind, int] = {
    "qwen2": 16_384, "qwen2.5": 16_384, "pixtral": 3_025,
}  # fmt: skip
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerFacts:
    """A vision tower's dimensions.

    Attributes:
        merge: patches that become one token of the text model.
    """

    kind: TowerKind
    depth: int
    hidden_size: int
    intermediate_size: int
    out_hidden_size: int
    patch_size: int
    temporal_patch_size: int
    merge: int

    @property
    def largest_image_tokens(self) -> int:
        return _LARGEST_IMAGE_TOKENS[self.kind]

    @property
    def patch_values(self) -> int:
        """Values of one patch, three colours."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def embedding_size(self) -> int:
        """Values the tower gives per token."""
        return self.out_hidden_size


Tower = TowerFacts | VisionShape


def parse_tower(kind: TowerKind, config: Mapping[str, Any], text_hidden: int) -> Tower | None:
    """Read `vision_config`; None where there is none, as in a text-only export.

    Raises:
        UnsupportedModelError: a feature of Qwen3-VL's that is not known.
        InvalidConfigError: a field of Qwen3-VL's is missing or cannot be right.
    """
    vision = config.get("vision_config")
    if isinstance(vision, Mapping) and not vision.get("hidden_size"):
        return None
    if kind == "qwen3":
        return parse_vision_config(config)
    if not isinstance(vision, Mapping):
        return None

    def size(name: str, default: int) -> int:
        value = vision.get(name, default)
        return value if isinstance(value, int) and value > 0 else default

    hidden = size("hidden_size", 1)
    if kind == "qwen2":  # its config names the text's width hidden_size, its own embed_dim
        hidden = size("embed_dim", hidden)
    return TowerFacts(
        kind=kind,
        depth=size("depth", size("num_hidden_layers", 24)),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size", int(hidden * vision.get("mlp_ratio", 4))),
        out_hidden_size=size("out_hidden_size", text_hidden),
        patch_size=size("patch_size", 14),
        temporal_patch_size=1 if kind == "pixtral" else size("temporal_patch_size", 2),
        merge=size("spatial_merge_size", 2) ** 2,
    )


def tower_shapes(tower: Tower) -> Iterator[Shape]:
    """Yield the shape of every parameter."""
    if isinstance(tower, VisionShape):
        for _, shape in vision_parameter_shapes(tower):
            # A convolution whose stride is its kernel is a matrix.
            yield (shape[0], tower.patch_values) if len(shape) == 5 else shape
        return
    yield (tower.hidden_size, tower.patch_values)
    for _ in range(tower.depth):
        yield from _block_shapes(tower)
    yield from _merger_shapes(tower)


def _block_shapes(tower: TowerFacts) -> Iterator[Shape]:
    hidden, inner, kind = tower.hidden_size, tower.intermediate_size, tower.kind
    has_bias, has_gate = kind != "pixtral", kind in ("qwen2.5", "pixtral")
    matrices = [(3 * hidden, hidden), (hidden, hidden), (inner, hidden), (hidden, inner)]
    if has_gate:
        matrices.append((inner, hidden))
    for matrix in matrices:
        yield matrix
        if has_bias:
            yield matrix[:1]
    for _ in range(2 if has_gate else 4):  # RMS norms have no bias
        yield (hidden,)


def _merger_shapes(tower: TowerFacts) -> Iterator[Shape]:
    merged, out = tower.hidden_size * tower.merge, tower.out_hidden_size
    yield (tower.hidden_size,)
    if tower.kind == "pixtral":  # Mistral 3: merge, then two matrices of the text's width
        yield (tower.hidden_size, merged)
        yield (out, tower.hidden_size)
        yield (out, out)
        return
    if tower.kind != "qwen2.5":
        yield (tower.hidden_size,)
    for rows, cols in ((merged, merged), (out, merged)):
        yield (rows, cols)
        yield (rows,)
