"""A picture or video as the model takes it, and what makes two of them the same.

Made by `images` and `video`, placed in a prompt by `prompt`. Knows no numpy and no torch: the
patches are memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from qwen_engine.vision.settings import ProcessorSettings

MediaKind = Literal["image", "video"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """One item, cut into patches.

    Attributes:
        key: stands for all that the tower's output depends on besides its weights.
        grid: frames (of a video: pairs of pictures), rows and columns of patches.
        merge_size: so many patches, squared, are one token.
        patches: bytes [num_patches, channels, pictures per frame, patch_size²], in the order of
            the merge; a picture is there once though the tower sees it twice.
        timestamps: seconds of each frame of a video.
    """

    kind: MediaKind
    key: bytes
    grid: tuple[int, int, int]
    merge_size: int
    patches: memoryview
    timestamps: tuple[float, ...] = ()

    @property
    def frame_tokens(self) -> tuple[int, int]:
        """Rows and columns of one frame's tokens."""
        return self.grid[1] // self.merge_size, self.grid[2] // self.merge_size

    @property
    def num_tokens(self) -> int:
        rows, columns = self.frame_tokens
        return self.grid[0] * rows * columns


def media_key(
    kind: MediaKind,
    contents: Iterable[bytes],
    *,
    form: tuple[str, int, int],
    settings: ProcessorSettings,
) -> bytes:
    """Return the hash of an item: its encoded bytes, its mode and size, and the settings.

    The bytes alone would do for a whole file, but not for a list of frames; each part carries its
    length, so that no two lists of parts read the same. Pixels without their shape would let one
    picture pass for another (sglang#22033).
    """
    digest = sha256(_part(f"{kind} {form} {settings}".encode()))
    for content in contents:
        digest.update(_part(content))
    return digest.digest()


def _part(content: bytes) -> bytes:
    return len(content).to_bytes(8, "little") + content
