"""Quantities are read as Kubernetes writes them."""

import pytest

from qwen_engine.planning import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1Gi", 1073741824),
        ("1G", 1000000000),
        ("1024Mi", 1073741824),
        ("1e9", 1000000000),
        ("1E9", 1000000000),
        ("128974848000m", 128974848),
        ("0.5Gi", 536870912),
        (4096, 4096),
        ("1E", 10**18),
    ],
)
def test_the_full_quantity_grammar_is_understood(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "many", "1Gib", "1 Gi", "Gi", "--1", "1e", "0x10"])
def test_what_is_no_quantity_is_refused_with_its_text(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_bytes(text)


def test_negative_memory_is_refused():
    with pytest.raises(ValueError, match="negative"):
        parse_bytes("-1Gi")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1536, "1.5 KiB"), (5 * 2**20, "5.0 MiB"), (3 * 2**29, "1.50 GiB")],
)
def test_bytes_are_shown_with_the_unit_that_keeps_them_readable(num_bytes, text):
    assert format_bytes(num_bytes) == text
