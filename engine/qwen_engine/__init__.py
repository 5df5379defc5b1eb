"""Planner and paged-attention engine for Qwen3 and Qwen3-VL.

`from qwen_engine import LLM, SamplingParams` is the engine for scripts and notebooks. Those names
are found when they are asked for: the planner's users have no torch, and need none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qwen_engine.llm import LLM as LLM
    from qwen_engine.llm_outputs import CompletionOutput as CompletionOutput
    from qwen_engine.llm_outputs import Logprob as Logprob
    from qwen_engine.llm_outputs import RequestOutput as RequestOutput
    from qwen_engine.llm_params import SamplingParams as SamplingParams
    from qwen_engine.llm_params import StructuredOutputsParams as StructuredOutputsParams

__version__ = "0.1.0"

_FOUND_IN = {
    "LLM": "llm",
    "CompletionOutput": "llm_outputs",
    "Logprob": "llm_outputs",
    "RequestOutput": "llm_outputs",
    "SamplingParams": "llm_params",
    "StructuredOutputsParams": "llm_params",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FOUND_IN[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_FOUND_IN])
