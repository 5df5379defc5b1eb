"""The sample of the tiny model that sees is about the checkpoint that is shipped."""

import json

import yaml

from tests.cluster.paths import REPOSITORY
from tests.models.seeing_folder import FOLDER, SERVED_NAME, offer_seeing


def test_the_sample_has_the_shape_of_the_shipped_checkpoint() -> None:
    sample = REPOSITORY / "crds" / "samples" / f"{SERVED_NAME}.yaml"
    told = yaml.safe_load(sample.read_text())["spec"]["model"]
    true = json.loads((FOLDER / "config.json").read_text())
    for part in ("text_config", "vision_config"):
        shown = told["config"].pop(part)
        assert shown == {name: true[part][name] for name in shown}
    assert told["config"] == {name: true[name] for name in told["config"]}
    assert told["uri"].rpartition("/")[2] == SERVED_NAME


def test_the_shipped_weights_stay_small() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size < 6_000_000


def test_a_changed_checkpoint_replaces_its_copy(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QWEN_CACHE_DIR", str(tmp_path))
    copy = offer_seeing()
    (copy / "config.json").write_text("{}")
    again = offer_seeing()
    assert again == copy
    assert (copy / "config.json").read_bytes() == (FOLDER / "config.json").read_bytes()
