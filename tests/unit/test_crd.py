"""The CRD that the operator applies at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen_operator import __version__
from qwen_operator.cluster import Kind
from qwen_operator.crd import VERSION_ANNOTATION, apply_crd, load_crd
from qwen_operator.errors import RefusedError, UnavailableError

Json = Mapping[str, Any]
SOURCE = Path(__file__).parents[2] / "crds" / "qwendeployments.yaml"


class Api:
    """A cluster with or without a CRD."""

    def __init__(self, version: str | None, error: Exception | None = None) -> None:
        self.version, self.error = version, error
        self.applied: list[Json] = []

    async def fetch(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        assert kind.path(namespace, name).endswith("customresourcedefinitions/" + name)
        if self.version is None:
            return None
        notes = {VERSION_ANNOTATION: self.version} if self.version else {}
        return {"metadata": {"annotations": notes}}

    async def apply(self, manifest: Json) -> None:
        if self.error is not None:
            raise self.error
        self.applied.append(manifest)


def test_it_is_the_one_that_is_shipped() -> None:
    carried, shipped = load_crd(), yaml.safe_load(SOURCE.read_text("utf-8"))
    assert carried["spec"] == shipped["spec"]
    assert carried["metadata"]["name"] == shipped["metadata"]["name"]
    assert carried["metadata"]["annotations"][VERSION_ANNOTATION] == __version__


@pytest.mark.parametrize("there", [None, "", "0.0.9", __version__])
async def test_it_is_applied_over_none_and_over_every_older_one(there: str | None) -> None:
    api = Api(there)
    await apply_crd(api)  # type: ignore[arg-type]
    assert [m["metadata"]["name"] for m in api.applied] == ["qwendeployments.qwenoperator.io"]


async def test_a_newer_one_stays(caplog: pytest.LogCaptureFixture) -> None:
    api = Api("12.0.0")
    await apply_crd(api)  # type: ignore[arg-type]
    assert not api.applied
    assert "12.0.0, newer than this operator" in caplog.text


async def test_a_refusal_is_told_with_the_way_out_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await apply_crd(Api("", RefusedError(403, "Forbidden", "no")))  # type: ignore[arg-type]
    assert "crds.install" in caplog.text


async def test_no_answer_is_the_callers_to_wait_for() -> None:
    with pytest.raises(UnavailableError):
        await apply_crd(Api("", UnavailableError(0, "NoAnswer", "no")))  # type: ignore[arg-type]
