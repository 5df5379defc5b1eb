"""What the text of a flag means: counts of tokens, data types. Used by `flags`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from decimal import Decimal

_DTYPES = {
    "auto": "auto",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "float32": "float32",
    "float": "float32",
}
_KV_CACHE_DTYPES = {"auto": "auto", "int8": "int8", "fp8": "fp8", "fp8_e4m3": "fp8"}
LONGEST = 0  # --max-model-len auto; no count of tokens is 0
_UNITS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "": 1}


def token_count(text: str) -> int:
    """Read 8192, 8k (8,000), 8K (8,192) or 1.5k, as vLLM does."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text)
    value = Decimal(match[1]) * _UNITS[match[2]] if match else Decimal(0)
    if value < 1 or value != value.to_integral_value():
        raise argparse.ArgumentTypeError(f"{text!r} is no count of tokens such as 8192, 8k or 8K")
    return int(value)


def data_type(text: str) -> str:
    """Read a data type in the spelling of vLLM."""
    if text not in _DTYPES:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(_DTYPES)}")
    return _DTYPES[text]


def kv_cache_type(text: str) -> str:
    """Read what keys and values are kept in."""
    if text not in _KV_CACHE_DTYPES:
        known = ", ".join(_KV_CACHE_DTYPES)
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {known}: take int8 or fp8 for 8 bits"
        )
    return _KV_CACHE_DTYPES[text]


def context_length(text: str) -> int:
    """Read a count of tokens, or `auto` as LONGEST."""
    return LONGEST if text == "auto" else token_count(text)


def only(value: str) -> Callable[[str], str]:
    """Return a reader that takes one value and says so of others."""

    def check(text: str) -> str:
        if text != value:
            message = f"{text} is not supported by this version of qwen-engine: only {value} is"
            raise argparse.ArgumentTypeError(message)
        return text

    return check
