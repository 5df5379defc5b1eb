"""Bytes and counts as people write and read them. Called by every module of planning."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

KIB, MIB, GIB = 2**10, 2**20, 2**30

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_SUFFIXES: dict[str, Decimal] = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?\d+\.?\d*|[+-]?\.\d+)(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")


def parse_quantity(text: str | int | float) -> Decimal:
    """Return a Kubernetes quantity (`1Gi`, `1G`, `1e9`, `128974848000m`) as a number.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 8Gi, 8G, 512Mi or 8000000000")
    digits, exponent, suffix = match.groups()
    try:
        return Decimal(digits + (exponent or "")) * _SUFFIXES[suffix or ""]
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is out of range for a quantity") from error


def parse_bytes(text: str | int | float) -> int:
    """Return a quantity of memory in whole bytes, rounded up.

    Raises:
        ValueError: the text is not a quantity, or is negative.
    """
    value = parse_quantity(text)
    if value < 0:
        raise ValueError(f"{text!r} is negative")
    return int(value.to_integral_value(rounding="ROUND_CEILING"))


def format_bytes(num_bytes: int) -> str:
    """Return bytes with the unit that keeps the figure readable: `1.11 GiB`, `96.0 MiB`."""
    sign, size = ("-", -num_bytes) if num_bytes < 0 else ("", num_bytes)
    if size >= GIB:
        return f"{sign}{size / GIB:.2f} GiB"
    if size >= MIB:
        return f"{sign}{size / MIB:.1f} MiB"
    if size >= KIB:
        return f"{sign}{size / KIB:.1f} KiB"
    return f"{sign}{size} B"


def round_down(value: int, multiple: int) -> int:
    """Return the largest multiple that is at most the value."""
    return value // multiple * multiple


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the quotient rounded up."""
    return -(-numerator // denominator)
