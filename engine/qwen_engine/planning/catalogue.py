"""The shapes of published models, so that planning needs no download.

data/models.yaml holds config.json facts once per shape, and the ids that share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from qwen_engine.planning.errors import UnknownModelError
from qwen_engine.planning.shape import ModelShape, parse_model_config


@cache
def _configs() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Return {lower-case id: (id as published, config)}."""
    text = resources.files("qwen_engine.planning").joinpath("data/models.yaml").read_text("utf-8")
    families = yaml.safe_load(text)
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for family in families:
        for row in family["models"]:
            config = {**family["common"], **row["config"]}
            for model_id in row["ids"]:
                found[model_id.lower()] = (model_id, config)
    return found


def model_ids() -> list[str]:
    """Return every id in the catalogue, sorted."""
    return sorted(name for name, _ in _configs().values())


def find_model(model_id: str) -> ModelShape:
    """Return the shape of a published model; ids are compared without case, as the hub does.

    Raises:
        UnknownModelError: the id is not in the catalogue.
    """
    try:
        name, config = _configs()[model_id.lower()]
    except KeyError:
        raise UnknownModelError(model_id) from None
    return parse_model_config(config, model_id=name)
