"""The fields that say when a request runs and whose cached prefixes it may use."""

from __future__ import annotations

from qwen_engine.sequence import SchedulingParams
from qwen_engine.server.protocol.fields import Fields

# A salt is a name of a tenant or a random string; the bound keeps requests small.
MAX_SALT_CHARS = 1024
_LARGEST_PRIORITY = 2**31 - 1


def parse_scheduling(fields: Fields) -> SchedulingParams:
    """Read `priority` and `cache_salt`, as vLLM's clients send them."""
    low, high = -_LARGEST_PRIORITY, _LARGEST_PRIORITY
    priority = fields.integer("priority", low=low, high=high)
    salt = fields.string("cache_salt")
    if salt is not None and not 1 <= len(salt) <= MAX_SALT_CHARS:
        why = f"must be a string of 1 to {MAX_SALT_CHARS} characters, not {len(salt)}"
        raise fields.error("cache_salt", why)
    return SchedulingParams(priority=priority or 0, cache_salt=salt)
