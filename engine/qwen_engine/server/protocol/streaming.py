"""`stream` and `stream_options`, which both completion routes share."""

from __future__ import annotations

from dataclasses import dataclass

from qwen_engine.server.protocol.fields import Fields


@dataclass(frozen=True, slots=True)
class Streaming:
    """Whether to stream, and whether to end with a chunk that has the usage."""

    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]  # parts of stream_options that nobody reads


def parse_streaming(fields: Fields) -> Streaming:
    stream = fields.boolean("stream")
    options = fields.object("stream_options")
    if options is None:
        return Streaming(stream, False, ())
    if not stream:
        raise fields.error("stream_options", "may only be given together with stream: true")
    inner = Fields(options, "stream_options")
    include_usage = inner.boolean("include_usage")
    return Streaming(stream, include_usage, tuple(inner.ignored()))
