"""Which pictures' embeddings the device holds, within a budget of tokens.

Owned by the scheduler, like the block manager: it decides, the worker encodes and forgets. An
item is known by the hash of its content, so one that is sent again, by whomever, is encoded once.
Those that a sequence still needs are held; the others stay until their room is needed, the
longest unused first. Knows no torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qwen_engine.errors import InvalidMediaError
from qwen_engine.sequence import EncoderOrders
from qwen_engine.vision.media import Media


@dataclass(slots=True)
class _Entry:
    num_tokens: int
    num_holders: int = 0
    is_ready: bool = False


class EncoderCache:
    """Held + idle ≤ budget, always."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0  # of all entries
        self.queries = 0
        self.hits = 0
        self._entries: dict[bytes, _Entry] = {}
        self._idle: OrderedDict[bytes, _Entry] = OrderedDict()  # without holder, oldest first
        self._forgotten: list[bytes] = []
        self._ordered: dict[bytes, Media] = {}

    def hold_all(self, items: Sequence[Media]) -> bool:
        """Hold all of these or, if they do not fit together, none."""
        for number, item in enumerate(items):
            if not self.hold(item):
                for held in items[:number]:
                    self.release(held.key)
                return False
        return True

    def hold(self, item: Media) -> bool:
        """Keep an item's embeddings here, to be encoded if they are not; no if nothing fits.

        Whoever holds it must `release` it once.
        """
        entry = self._entries.get(item.key)
        if entry is None:
            if not self._make_room(item.num_tokens):
                return False
            entry = self._entries[item.key] = _Entry(item.num_tokens)
            self.num_tokens += item.num_tokens
            self._ordered[item.key] = item
        else:
            self.hits += 1
            self._idle.pop(item.key, None)
        self.queries += 1
        entry.num_holders += 1
        return True

    def release(self, key: bytes) -> None:
        """Say that one holder needs it no more."""
        entry = self._entries[key]
        entry.num_holders -= 1
        if entry.num_holders > 0:
            return
        if entry.is_ready:
            self._idle[key] = entry
        else:  # nobody waits for it any more
            self._forget(key)

    def is_ready(self, key: bytes) -> bool:
        """Say whether its embeddings can be read by the next step."""
        entry = self._entries.get(key)
        return entry is not None and entry.is_ready

    def mark_ready(self, keys: Iterable[bytes]) -> None:
        """Take note of what the worker has encoded."""
        for key in keys:
            if (entry := self._entries.get(key)) is not None:
                entry.is_ready = True

    @property
    def has_pending(self) -> bool:
        """Something held is not encoded yet."""
        return any(not entry.is_ready for entry in self._entries.values())

    def take_orders(self) -> EncoderOrders:
        """Return, once, what the worker must forget and encode."""
        orders = EncoderOrders(tuple(self._forgotten), tuple(self._ordered.values()))
        self._forgotten, self._ordered = [], {}
        return orders

    def forget_all(self) -> None:
        """Forget everything, held or not: what the worker has is not to be trusted."""
        for key in list(self._entries):
            self._forget(key)

    def _make_room(self, num_tokens: int) -> bool:
        idle = sum(entry.num_tokens for entry in self._idle.values())
        if self.num_tokens - idle + num_tokens > self.max_tokens:
            return False
        while self.num_tokens + num_tokens > self.max_tokens:
            self._forget(next(iter(self._idle)))
        return True

    def _forget(self, key: bytes) -> None:
        self.num_tokens -= self._entries.pop(key).num_tokens
        self._idle.pop(key, None)
        if self._ordered.pop(key, None) is None:  # else the worker has never heard of it
            self._forgotten.append(key)


def check_media(media: Iterable[Media], *, max_tokens: int) -> None:
    """Raise InvalidMediaError unless a request's pictures fit together; each counts once."""
    num_tokens = sum({item.key: item.num_tokens for item in media}.values())
    check_num_tokens(num_tokens, max_tokens=max_tokens)


def check_num_tokens(num_tokens: int, *, max_tokens: int, item: str = "messages") -> None:
    """Raise InvalidMediaError, about `item`, unless pictures of so many tokens fit together."""
    if num_tokens and max_tokens == 0:
        raise InvalidMediaError(item, "this server answers about text only")
    if num_tokens > max_tokens:
        raise InvalidMediaError(
            item,
            f"its pictures are {num_tokens:,} tokens; {max_tokens:,} are taken at once: send fewer "
            "or smaller ones (mm_processor_kwargs.max_pixels)",
        )
