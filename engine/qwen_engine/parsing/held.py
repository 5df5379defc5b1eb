"""What must be held back of a growing text because it may become a tag."""

from __future__ import annotations


def split_possible_tag(text: str, tag: str) -> tuple[str, str]:
    """Return the text without, and the longest end of it that could begin `tag`.

    The tag itself must not be in the text.
    """
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length], text[-length:]
    return text, ""
