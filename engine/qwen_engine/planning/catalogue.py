"""The shapes of published models, so that planning needs no download.

data/models.yaml holds config.json facts once per shape with the ids that share it, and for
quantised checkpoints the suffix of the id and what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from qwen_engine.planning.errors import UnknownModelError
from qwen_engine.planning.gpus import load_data
from qwen_engine.planning.shape import ModelShape, read_model_facts
from qwen_engine.planning.support import runs_here


@cache
def _configs() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Return {lower-case id: (id as published, config)}."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for family in load_data("models.yaml"):
        for row in family.get("models", ()):
            config = {**family["common"], **row["config"]}
            for model_id in row["ids"]:
                found[model_id.lower()] = (model_id, config)
        for variant in family.get("variants", ()):
            for base in variant["of"]:
                model_id = base + variant["suffix"]
                config = {**found[base.lower()][1], **variant["config"]}
                found[model_id.lower()] = (model_id, config)
    return found


def published_ids() -> list[str]:
    """Return every id in the catalogue, sorted."""
    return sorted(name for name, _ in _configs().values())


def model_ids() -> list[str]:
    """Return the ids in the catalogue that this version's own engine runs, sorted."""
    return [name for name in published_ids() if runs_here(find_model(name))]


def find_model(model_id: str) -> ModelShape:
    """Return the shape of a published model; ids are compared without case, as the hub does.

    Raises:
        UnknownModelError: the id is not in the catalogue.
    """
    try:
        name, _ = _configs()[model_id.lower()]
    except KeyError:
        raise UnknownModelError(model_id) from None
    return _shape(name)


@lru_cache(maxsize=256)
def _shape(name: str) -> ModelShape:
    return read_model_facts(_configs()[name.lower()][1], model_id=name)


def variants_of(model_id: str) -> list[str]:
    """Return the quantised checkpoints of a published id, the most precise first."""
    own = model_id.lower()
    names = [f"{own}{suffix}" for suffix in ("-fp8", "-gptq-int8", "-awq", "-gptq-int4")]
    return [_configs()[name][0] for name in names if name in _configs()]
