"""OpenAI's JSON ↔ dataclasses. Knows neither aiohttp nor the engine's state."""
