"""The CRD of this operator's version, applied at start: Helm installs one, and never upgrades it.

Called by `handlers` before anything is watched. The file is `crds/qwendeployments.yaml` itself,
which the package carries.
"""

from __future__ import annotations

import logging
import re
from importlib.resources import files
from typing import Any

import yaml

from qwen_operator import __version__, names
from qwen_operator.cluster import CRD, Cluster
from qwen_operator.errors import RefusedError

VERSION_ANNOTATION = f"{names.GROUP}/operator-version"
logger = logging.getLogger(__name__)


def load_crd() -> dict[str, Any]:
    """Return the definition, with the version that it belongs to."""
    text = files("qwen_operator").joinpath("data/qwendeployments.yaml").read_text("utf-8")
    manifest: dict[str, Any] = yaml.safe_load(text)
    manifest["metadata"].setdefault("annotations", {})[VERSION_ANNOTATION] = __version__
    return manifest


async def apply_crd(cluster: Cluster) -> None:
    """Make the CRD what this version needs; one of a newer version stays.

    A refusal is told and no more: the operator may well serve what is there. Raises
    UnavailableError where the API does not answer.
    """
    manifest = load_crd()
    try:
        live = await cluster.fetch(CRD, None, manifest["metadata"]["name"])
        notes = ((live or {}).get("metadata") or {}).get("annotations") or {}
        theirs = notes.get(VERSION_ANNOTATION, "")
        if _number(theirs) > _number(__version__):
            logger.warning("the CRD is of version %s, newer than this operator: it stays", theirs)
            return
        await cluster.apply(manifest)
    except RefusedError as error:
        logger.error(
            "the CRD could not be applied: %s. Give the operator that right (chart: rbac.create), "
            "or turn crds.install off and apply crds/qwendeployments.yaml before each upgrade",
            error,
        )
        return
    if live is None or theirs != __version__:
        logger.info("applied the CRD of version %s", __version__)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
