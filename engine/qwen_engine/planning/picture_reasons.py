"""What a plan says of its pictures. Called by `plan`."""

from __future__ import annotations

from qwen_engine.planning.choices import DEMANDED
from qwen_engine.planning.pictures import LEAST_USEFUL, Pictures


def size_reason(pictures: Pictures) -> str:
    """Say how large pictures may be, and why no larger."""
    return f"pictures and videos of at most {pictures.largest_tokens:,} tokens: {pictures.reason}"


def limit_reason(pictures: Pictures, *, kept_tokens: int) -> str:
    """Say how many pictures a request may have."""
    if "image" in pictures.limits:
        return DEMANDED
    largest = max(1, kept_tokens // pictures.image_tokens)
    return (
        f"what the encoder cache holds: {largest} of the largest size, "
        f"{kept_tokens // LEAST_USEFUL:,} of the smallest"
    )


def cache_reason(pictures: Pictures, *, kept_tokens: int) -> str:
    """Say why so much is kept."""
    if pictures.cache_tokens is not None:
        return DEMANDED
    if not pictures.is_counted:
        return "half of a context may be pictures; those seen before stay while there is room"
    if kept_tokens < pictures.request_tokens:
        return "as many as a context has: all that are allowed would be more than one"
    return f"{pictures.images} pictures and {pictures.videos} videos of the largest size"
