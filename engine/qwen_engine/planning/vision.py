"""Vision facts: what config.json says of a Qwen3-VL tower, checked.

The one reader of `vision_config`: the planner counts the tower's bytes from it, `models.vision`
builds the tower on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qwen_engine.planning.errors import InvalidConfigError, UnsupportedModelError
from qwen_engine.planning.fields import positive_int, text_config

# Of every published Qwen3-VL; a checkpoint's config.json may say otherwise.
DEFAULT_TOKEN_IDS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}
# By depth of the published towers, for a config.json that does not name them.
_PUBLISHED_TAPS = {24: [5, 11, 17], 27: [8, 16, 24]}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTokens:
    """Ids of the tokens that stand for pictures in a prompt."""

    image: int
    video: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """A vision tower's dimensions.

    Attributes:
        merge_size: so many patches, squared, become one token of the text model.
        grid_side: side of the learned grid of positions.
        taps: blocks whose output, merged, is added after the first layers of the text model.
        image_pixels: the most that the checkpoint's processor lets through; video_pixels: of all
            frames of a video together. Those published, where its files are not at hand.
    """

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    out_hidden_size: int
    grid_side: int
    taps: tuple[int, ...]
    rope_theta: float
    tokens: VisionTokens
    image_pixels: int = 16_777_216
    video_pixels: int = 25_165_824

    @property
    def kind(self) -> Literal["qwen3"]:
        return "qwen3"

    @property
    def merge(self) -> int:
        """Patches that become one token of the text model."""
        return self.merge_size**2

    @property
    def token_pixels(self) -> int:
        """Pixels of a picture that become one token."""
        return self.patch_size**2 * self.merge

    @property
    def largest_image_tokens(self) -> int:
        return max(1, self.image_pixels // self.token_pixels)

    @property
    def largest_video_tokens(self) -> int:
        return max(1, self.video_pixels // (self.token_pixels * self.temporal_patch_size))

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_values(self) -> int:
        """Values of one patch: channels × frames × rows × columns."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merged_size(self) -> int:
        """Values of the patches that become one token, side by side."""
        return self.hidden_size * self.merge_size**2

    @property
    def embedding_size(self) -> int:
        """Values the tower gives per token: the main merger's and each tap's."""
        return self.out_hidden_size * (1 + len(self.taps))


def parse_vision_config(config: Mapping[str, Any]) -> VisionShape | None:
    """Read the vision part of a config.json; None if it has none.

    Raises:
        UnsupportedModelError: a feature this version cannot run.
        InvalidConfigError: a field is missing or cannot be right.
    """
    vision = config.get("vision_config")
    if vision is None:
        return None
    if not isinstance(vision, Mapping):
        raise InvalidConfigError("vision_config", vision, "must be an object")
    if (activation := vision.get("hidden_act", "gelu_pytorch_tanh")) != "gelu_pytorch_tanh":
        raise UnsupportedModelError(
            f"the vision tower has hidden_act={activation!r}; only 'gelu_pytorch_tanh' is supported"
        )
    hidden, heads = positive_int(vision, "hidden_size"), positive_int(vision, "num_heads", 16)
    if hidden % (4 * heads):
        raise InvalidConfigError(
            "vision_config.num_heads", heads, f"must divide hidden_size={hidden} in multiples of 4"
        )
    depth = positive_int(vision, "depth")
    return VisionShape(
        depth=depth,
        hidden_size=hidden,
        intermediate_size=positive_int(vision, "intermediate_size"),
        num_heads=heads,
        in_channels=positive_int(vision, "in_channels", 3),
        patch_size=positive_int(vision, "patch_size", 16),
        temporal_patch_size=positive_int(vision, "temporal_patch_size", 2),
        merge_size=positive_int(vision, "spatial_merge_size", 2),
        out_hidden_size=_out_hidden_size(vision, config),
        grid_side=_grid_side(vision),
        taps=_taps(vision, depth, config),
        rope_theta=_rope_theta(vision),
        tokens=_tokens(config),
    )


def vision_parameter_shapes(vision: VisionShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each parameter of the tower: its name in the checkpoint and its shape."""
    prefix, hidden = "model.visual.", vision.hidden_size
    patch = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    yield f"{prefix}patch_embed.proj.weight", (hidden, *patch)
    yield f"{prefix}patch_embed.proj.bias", (hidden,)
    yield f"{prefix}pos_embed.weight", (vision.grid_side**2, hidden)
    for index in range(vision.depth):
        for name, shape in _block_shapes(vision):
            yield f"{prefix}blocks.{index}.{name}", shape
    yield from _merger_shapes(vision, f"{prefix}merger.", hidden)
    for index in range(len(vision.taps)):
        yield from _merger_shapes(
            vision, f"{prefix}deepstack_merger_list.{index}.", vision.merged_size
        )


def _block_shapes(vision: VisionShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = vision.hidden_size, vision.intermediate_size
    for name in ("norm1", "norm2"):
        yield f"{name}.weight", (hidden,)
        yield f"{name}.bias", (hidden,)
    sizes = {
        "attn.qkv": (3 * hidden, hidden),
        "attn.proj": (hidden, hidden),
        "mlp.linear_fc1": (inner, hidden),
        "mlp.linear_fc2": (hidden, inner),
    }
    for name, shape in sizes.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]


def _merger_shapes(
    vision: VisionShape, prefix: str, normed: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    merged, out = vision.merged_size, vision.out_hidden_size
    yield f"{prefix}norm.weight", (normed,)
    yield f"{prefix}norm.bias", (normed,)
    for name, shape in (("linear_fc1", (merged, merged)), ("linear_fc2", (out, merged))):
        yield f"{prefix}{name}.weight", shape
        yield f"{prefix}{name}.bias", shape[:1]


def _out_hidden_size(vision: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    text = positive_int(text_config(config), "hidden_size")
    out = positive_int(vision, "out_hidden_size", text)
    if out != text:
        raise InvalidConfigError(
            "vision_config.out_hidden_size", out, f"must be the text model's hidden_size={text}"
        )
    return out


def _grid_side(vision: Mapping[str, Any]) -> int:
    count = positive_int(vision, "num_position_embeddings", 2304)
    side = math.isqrt(count)
    if side * side != count:
        raise InvalidConfigError("vision_config.num_position_embeddings", count, "must be a square")
    return side


def _taps(vision: Mapping[str, Any], depth: int, config: Mapping[str, Any]) -> tuple[int, ...]:
    taps = vision.get("deepstack_visual_indexes", _PUBLISHED_TAPS.get(depth, []))
    is_list = isinstance(taps, list) and all(type(tap) is int for tap in taps)
    if not is_list or taps != sorted(set(taps)) or not all(0 <= tap < depth for tap in taps):
        raise InvalidConfigError(
            "vision_config.deepstack_visual_indexes",
            taps,
            f"must be a list of different block numbers below depth={depth}, in order",
        )
    layers = positive_int(text_config(config), "num_hidden_layers")
    if len(taps) > layers:
        raise InvalidConfigError(
            "vision_config.deepstack_visual_indexes",
            taps,
            f"has more entries than the text model has layers ({layers})",
        )
    return tuple(taps)


def _rope_theta(vision: Mapping[str, Any]) -> float:
    parameters = vision.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping):
        raise InvalidConfigError("vision_config.rope_parameters", parameters, "must be an object")
    theta = parameters.get("rope_theta", 10000.0)
    if isinstance(theta, bool) or not isinstance(theta, int | float) or not theta > 0:
        raise InvalidConfigError("vision_config.rope_theta", theta, "must be a number above 0")
    return float(theta)


def _tokens(config: Mapping[str, Any]) -> VisionTokens:
    ids = {}
    for field, default in DEFAULT_TOKEN_IDS.items():
        value = config.get(field, default)
        if type(value) is not int or value < 0:
            raise InvalidConfigError(field, value, "must be a token id")
        ids[field] = value
    return VisionTokens(
        image=ids["image_token_id"],
        video=ids["video_token_id"],
        start=ids["vision_start_token_id"],
        end=ids["vision_end_token_id"],
    )
