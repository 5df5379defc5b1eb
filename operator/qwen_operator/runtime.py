"""spec.engine.runtime: what a spec for vLLM may ask for; which image and release it means. Pure.

Called by `reconcile` (image), `spec_plan` (rules) and `pod_template` (what a release knows).
"""

from __future__ import annotations

import re
from dataclasses import replace

from qwen_engine.planning.vllm_version import NEWEST as PLANNED
from qwen_operator.errors import InvalidSpecError
from qwen_operator.spec import QwenDeploymentSpec

# The release that the planner takes where nothing says another.
NEWEST = ".".join(map(str, PLANNED.number))
DEFAULT_VLLM_IMAGE = f"vllm/vllm-openai:v{NEWEST}"
_OLDEST = (0, 11, 0)  # from here on there is one engine, with the flags and series of today
# vllm-project/vllm pull request 36666; before, running requests were cut off at SIGTERM
_DRAINS_FROM = (0, 18, 0)
# vllm-project/vllm pull request 38378 (April 2026), between 0.19.0 and 0.20.0
_INT8_CACHE_FROM = (0, 20, 0)
_RELEASE = re.compile(r"v?(\d{1,3})\.(\d{1,3})\.(\d{1,3})")


def image_of(spec: QwenDeploymentSpec, *, engine: str, vllm: str) -> str:
    """Return the image of a spec's pods.

    Args:
        engine, vllm: the images of specs that name none. That of vLLM gets the tag of
            spec.engine.version, if there is one.
    """
    chosen = spec.engine
    if chosen.image is not None or not chosen.is_vllm:
        return chosen.image or engine
    if chosen.version is None or _tagged_release(vllm) == chosen.version:
        return vllm
    return f"{_split(vllm)[0]}:v{chosen.version}"


def with_release(spec: QwenDeploymentSpec, image: str | None) -> QwenDeploymentSpec:
    """Return the spec with the release of vLLM that its image's tag names, if it names none."""
    if not spec.engine.is_vllm or spec.engine.version is not None or image is None:
        return spec
    return replace(spec, engine=replace(spec.engine, version=_tagged_release(image)))


def can_drain(spec: QwenDeploymentSpec) -> bool:
    """Say whether the engine can be told how long running requests may take after SIGTERM."""
    return not spec.engine.is_vllm or _number(spec.engine.version or NEWEST) >= _DRAINS_FROM


def check_runtime(spec: QwenDeploymentSpec) -> None:
    """Check that the runtime can do what the spec asks of it.

    Raises:
        InvalidSpecError: a field that the runtime does not know.
    """
    chosen, overrides = spec.engine, spec.engine.overrides
    if not chosen.is_vllm:
        for name, value in (
            ("version", chosen.version),
            ("overrides.tensorParallelSize", overrides.tensor_parallel_size),
        ):
            if value is not None:
                raise InvalidSpecError(
                    f"spec.engine.{name}",
                    f"{value}: is for vLLM; remove it, or set spec.engine.runtime: VLLM",
                )
        return
    _check_vllm(spec)


def _check_vllm(spec: QwenDeploymentSpec) -> None:
    overrides, version = spec.engine.overrides, spec.engine.version
    if spec.gpu.count == 0:
        raise InvalidSpecError(
            "spec.engine.runtime",
            "VLLM needs a GPU: remove spec.gpu.count: 0, or leave runtime out to serve on the CPU",
        )
    if overrides.swap_space_gib is not None:
        raise InvalidSpecError(
            "spec.engine.overrides.swapSpaceGiB",
            "vLLM has no swap space (it computes again): remove it",
        )
    if overrides.quantization not in (None, "none"):
        raise InvalidSpecError(
            "spec.engine.overrides.quantization",
            f"{overrides.quantization}: our own engine makes it at load; for vLLM name a packed "
            "checkpoint in spec.model.id, such as an FP8 or AWQ one",
        )
    if overrides.kv_cache_dtype == "int8" and _number(version or NEWEST) < _INT8_CACHE_FROM:
        raise InvalidSpecError(
            "spec.engine.overrides.kvCacheDtype",
            f"int8: vLLM {version} has none yet; use fp8, or 0.20.0 or newer",
        )
    if (size := overrides.tensor_parallel_size) is not None and size > spec.gpu.count:
        raise InvalidSpecError(
            "spec.engine.overrides.tensorParallelSize",
            f"{size}: a pod may have {spec.gpu.count} (spec.gpu.count): raise that too",
        )
    if version is None:
        return
    if not _RELEASE.fullmatch(version) or _number(version) < _OLDEST:
        raise InvalidSpecError(
            "spec.engine.version",
            f"{version!r} must be a release of vLLM from {'.'.join(map(str, _OLDEST))} on, such as "
            f"{NEWEST}: older ones have another engine and other flags",
        )


def _number(version: str) -> tuple[int, ...]:
    match = _RELEASE.match(version)
    return tuple(int(part) for part in match.groups()) if match else (0, 0, 0)


def _tagged_release(image: str) -> str | None:
    match = _RELEASE.match(_split(image)[1])
    return ".".join(match.groups()) if match else None


def _split(image: str) -> tuple[str, str]:
    """Return an image's name and tag; a digest is no tag."""
    name = image.partition("@")[0]
    colon = name.rfind(":")
    return (name[:colon], name[colon + 1 :]) if colon > name.rfind("/") else (name, "")
