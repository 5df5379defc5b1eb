"""What the command line says of model and engine, before anything is planned or loaded.

Made by `cli`, read by `launch`. Light to import: `--help` and its like need neither torch nor a
hub.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from qwen_engine.hub import ModelSource
from qwen_engine.planning import Demands


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What is None, here or in `demands`, is planned."""

    model: str  # folder or hub id
    source: ModelSource = field(default_factory=ModelSource)
    served_model_names: tuple[str, ...] = ()  # empty: the model as it was given
    device: Literal["auto", "cpu", "cuda"] = "auto"
    demands: Demands = field(default_factory=Demands)
    chat_template: str | None = None  # the template's text, instead of the model's own
    use_recommended_sampling: bool = True  # generation_config.json's, where a request is silent
    preemption_mode: Literal["auto", "swap", "recompute"] = "auto"
    seed: int = 0
    allowed_media_domains: tuple[str, ...] = ()  # empty: all public ones
