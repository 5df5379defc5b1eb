"""A picture is encoded once, stays while it is needed, and goes when its room is."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qwen_engine.encoder_cache import EncoderCache, check_media
from qwen_engine.errors import InvalidMediaError
from qwen_engine.vision.media import Media


def picture(name: int, num_tokens: int) -> Media:
    return Media(
        kind="image", key=bytes([name]), grid=(1, 2, 2 * num_tokens), merge_size=2,
        patches=memoryview(b""),
    )  # fmt: skip


def test_what_is_sent_again_is_encoded_once() -> None:
    cache = EncoderCache(10)
    assert cache.hold(picture(1, 4))
    assert [item.key for item in cache.take_orders().encode] == [b"\1"]
    assert not cache.is_ready(b"\1")
    cache.mark_ready([b"\1"])
    cache.release(b"\1")
    assert cache.hold(picture(1, 4))
    assert cache.is_ready(b"\1")
    assert cache.take_orders().encode == ()
    assert (cache.hits, cache.queries) == (1, 2)


def test_the_longest_unused_goes_first() -> None:
    cache = EncoderCache(10)
    for name in (1, 2):
        assert cache.hold(picture(name, 4))
    cache.take_orders()
    cache.mark_ready([b"\1", b"\2"])
    cache.release(b"\2")
    cache.release(b"\1")
    assert cache.hold(picture(3, 5))
    assert cache.take_orders().forget == (b"\2",)
    assert cache.is_ready(b"\1")


def test_what_is_held_is_never_forgotten() -> None:
    cache = EncoderCache(10)
    assert cache.hold(picture(1, 8))
    assert not cache.hold(picture(2, 4))
    assert cache.take_orders().forget == ()


def test_what_nobody_waits_for_is_not_encoded() -> None:
    cache = EncoderCache(10)
    cache.hold(picture(1, 8))
    cache.release(b"\1")
    assert cache.take_orders().encode == ()
    cache.hold(picture(2, 8))
    cache.take_orders()
    cache.release(b"\2")  # the worker has begun with it
    assert cache.take_orders().forget == (b"\2",)
    assert cache.num_tokens == 0


def test_all_pictures_of_a_request_are_held_or_none() -> None:
    cache = EncoderCache(10)
    assert not cache.hold_all([picture(1, 6), picture(2, 6)])
    assert cache.num_tokens == 0
    assert cache.hold_all([picture(1, 6), picture(1, 6)])
    assert cache.num_tokens == 6


def test_what_can_never_fit_is_refused_with_the_figures() -> None:
    check_media([picture(1, 6), picture(1, 6)], max_tokens=6)
    check_media([], max_tokens=0)
    with pytest.raises(InvalidMediaError, match="12 tokens; 10 are taken"):
        check_media([picture(1, 6), picture(2, 6)], max_tokens=10)
    with pytest.raises(InvalidMediaError, match="text only"):
        check_media([picture(1, 6)], max_tokens=0)


class CacheMachine(RuleBasedStateMachine):
    """Any order of holding, encoding and releasing."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = EncoderCache(20)
        self.held: list[bytes] = []
        self.on_device: set[bytes] = set()
        self.started: set[bytes] = set()

    @rule(name=st.integers(1, 6))
    def hold(self, name: int) -> None:
        if self.cache.hold(picture(name, 3 * name)):
            self.held.append(bytes([name]))

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 100))
    def release(self, index: int) -> None:
        self.cache.release(self.held.pop(index % len(self.held)))

    @rule(share=st.integers(0, 3))
    def work(self, share: int) -> None:
        orders = self.cache.take_orders()
        for key in orders.forget:
            self.on_device.discard(key)
            self.started.discard(key)
        self.started |= {item.key for item in orders.encode}
        done = sorted(self.started)[:share]
        self.started -= set(done)
        self.on_device |= set(done)
        self.cache.mark_ready(done)

    @invariant()
    def budget_holds_and_what_is_held_is_here(self) -> None:
        assert 0 <= self.cache.num_tokens <= 20
        for key in self.held:
            assert self.cache.is_ready(key) <= (key in self.on_device)


CacheMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestCacheMachine = CacheMachine.TestCase
