"""What reads pictures and videos, made as an engine's configuration says.

Called once a model that sees is loaded, by the server and by `LLM`. Apart from `media`, which need
not know where its bounds come from; imported late, as a server of text should load no decoders.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from qwen_engine.config import EngineConfig
from qwen_engine.server.media import MediaReader
from qwen_engine.server.media_fetch import FETCH_SECONDS, FetchPolicy, MediaFetcher
from qwen_engine.server.settings import IPNetwork
from qwen_engine.vision.settings import ProcessorSettings


async def open_media(
    config: EngineConfig,
    stack: AsyncExitStack,
    *,
    private_networks: tuple[IPNetwork, ...] = (),
    timeout_seconds: float = FETCH_SECONDS,
) -> MediaReader:
    """Return a reader that lives as long as `stack`."""
    domains = frozenset(domain.lower() for domain in config.allowed_media_domains)
    policy = FetchPolicy(
        hosts=domains or None,
        private_networks=private_networks,
        timeout_seconds=timeout_seconds,
    )
    settings = ProcessorSettings.from_folder(config.model_path)
    reader = MediaReader(
        await stack.enter_async_context(MediaFetcher(policy)),
        settings.changed(config.mm_processor_kwargs, param="--mm-processor-kwargs"),
        limits=config.limit_mm_per_prompt,
        max_tokens=config.encoder_cache_tokens,
        max_model_len=config.max_model_len,
    )
    stack.callback(reader.close)
    return reader
