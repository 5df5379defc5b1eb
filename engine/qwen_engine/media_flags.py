"""The flags about pictures and videos, and what their text means. Used by `flags`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any


def add_picture_flags(add: Callable[..., object]) -> None:
    """Add those that the planner computes."""
    add(
        "--limit-mm-per-prompt",
        type=media_limits,
        metavar="LIMITS",
        help="pictures and videos of one request, as JSON or image=4,video=1; image=0,video=0 "
        "serves text only, without the vision tower",
    )
    add(
        "--mm-processor-kwargs",
        type=json_object,
        metavar="JSON",
        help="over the checkpoint's own, such as '{\"max_pixels\": 1048576}'; fps, num_frames, "
        "min_frames and max_frames are of videos",
    )
    add(
        "--encoder-cache-tokens",
        type=int,
        metavar="N",
        help="tokens of pictures that are kept on the device; those of one request must fit",
    )


def add_domain_flag(add: Callable[..., object]) -> None:
    """Add the list of hosts."""
    add(
        "--allowed-media-domains",
        nargs="+",
        default=[],
        metavar="DOMAIN",
        help="hosts that pictures and videos may be fetched from (default: all public ones)",
    )


def json_object(text: str) -> dict[str, Any]:
    """Read an object in JSON."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no object such as {{"max_pixels": 1048576}}')
    return found


def media_limits(text: str) -> dict[str, int]:
    """Read counts by kind: `{"image": 4}`, vLLM's `{"image": {"count": 4}}`, `image=4,video=1`."""
    if text.lstrip().startswith("{"):
        given = json_object(text)
    else:
        pairs = (part.partition("=") for part in text.split(",") if part.strip())
        given = {name.strip(): value.strip() for name, _, value in pairs}
    return {kind: _count(value, kind) for kind, value in given.items()}


def _count(value: object, kind: str) -> int:
    if isinstance(value, dict):
        if set(value) != {"count"}:
            raise argparse.ArgumentTypeError(
                f"{kind}: {json.dumps(value)}: only count is known here; sizes are bounded by "
                "--mm-processor-kwargs"
            )
        value = value["count"]
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}", str(value)):
        raise argparse.ArgumentTypeError(f"{kind}={value}: must be 0 or more, such as {kind}=4")
    return int(str(value))
