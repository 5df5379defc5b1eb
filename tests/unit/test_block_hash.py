"""A block's name tells apart all that its content depends on."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from qwen_engine.block_hash import ExtraKey, hash_block, hash_root

ROOT = hash_root("a")
_keys = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3)


def test_models_have_different_roots() -> None:
    assert hash_root("Qwen3-0.6B bfloat16") != hash_root("Qwen3-0.6B float16")


def test_hashes_depend_on_tokens_their_borders_and_the_parent() -> None:
    hashes = {
        hash_block(ROOT, [1, 23]),
        hash_block(ROOT, [12, 3]),
        hash_block(ROOT, [1, 2, 3]),
        hash_block(hash_block(ROOT, [1]), [2, 3]),
        hash_block(hash_root("b"), [1, 23]),
    }
    assert len(hashes) == 5


def test_equal_values_of_different_kinds_are_different_keys() -> None:
    """An adapter's name must not pass for a salt, nor two keys for one longer."""
    keys: list[list[ExtraKey]] = [
        [],
        [("salt", b"x")],
        [("adapter", b"x")],
        [("salt", b""), ("salt", b"x")],
        [("sal", b"tx")],
        [("image", b"x"), ("offset", b"\x01")],
        [("image", b"x\x01"), ("offset", b"")],
    ]
    assert len({hash_block(ROOT, [1, 2], each) for each in keys}) == len(keys)


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=3), _keys), max_size=4))
def test_different_contents_have_different_hashes(
    contents: list[tuple[list[int], list[ExtraKey]]],
) -> None:
    for one, other in combinations(contents, 2):
        assert (hash_block(ROOT, *one) == hash_block(ROOT, *other)) == (one == other)
