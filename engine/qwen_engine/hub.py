"""From what the user calls a model to a folder with its files.

Owns the rules for folders and hub ids, the download with its progress, and the sentences that say
what to do when a model cannot be had. Called by `launch`. `HF_ENDPOINT`, `HF_TOKEN`,
`HF_HUB_OFFLINE` and `HF_HOME` are huggingface_hub's own and work as its users know them. Knows
neither torch nor HTTP.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen_engine.errors import ModelNotFoundError
from qwen_engine.planning import format_bytes

log = logging.getLogger(__name__)

# What the engine reads and nothing else: many repositories hold the weights two or three times
# over.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model"]
_UNWANTED = ["*/*", "consolidated*"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SECONDS_BETWEEN_LINES = 5.0
_CONFIG_SECONDS = 5.0  # a plan waits no longer for a config.json

DownloadProgress = Callable[[int, int], None]  # bytes so far, bytes in all


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where to look for a model, beyond its name."""

    revision: str | None = None  # branch, tag or commit; None is the hub's main
    download_dir: Path | None = None  # None is the hub's own cache
    endpoint: str | None = None  # None is HF_ENDPOINT


def resolve_model(
    model: str, source: ModelSource, *, on_progress: DownloadProgress | None = None
) -> Path:
    """Return the folder of a model, downloading it first if it is a hub id.

    Raises:
        ModelNotFoundError: it cannot be had; the message says why and what would help.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _check_folder(folder, folder)
    if _looks_like_path(model) or folder.exists():
        why = "is a file, not a folder" if folder.exists() else "no such folder"
        raise ModelNotFoundError(
            folder, f"{why}: give a folder with config.json and *.safetensors, or a hub id such as "
            "Qwen/Qwen3-0.6B",
        )  # fmt: skip
    if not _HUB_ID.fullmatch(model):
        raise ModelNotFoundError(
            Path(model), "is neither a folder nor a hub id of the form organisation/name"
        )
    return _check_folder(_download(model, source, on_progress), Path(model))


def fetch_config(model: str, source: ModelSource) -> dict[str, Any]:
    """Return a hub model's config.json, from the cache or in one quick request.

    Raises:
        ModelNotFoundError: it cannot be had; the message says why and what would help.
    """
    from huggingface_hub import (
        constants,
        get_session,
        get_token,
        hf_hub_url,
        hf_raise_for_status,
        try_to_load_from_cache,
    )

    revision = source.revision or "main"
    try:
        cached = try_to_load_from_cache(
            model, "config.json", cache_dir=source.download_dir, revision=revision
        )
        if isinstance(cached, str):
            return _config_of(Path(cached).read_text("utf-8"))
        if constants.is_offline_mode():
            raise OSError("HF_HUB_OFFLINE is set")
        url = hf_hub_url(model, "config.json", revision=revision, endpoint=source.endpoint)
        token = get_token()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = get_session().get(
            url, headers=headers, timeout=_CONFIG_SECONDS, follow_redirects=True
        )
        hf_raise_for_status(answer)
        return _config_of(answer.text)
    except Exception as error:
        raise ModelNotFoundError(Path(model), _explain(error, source)) from error


def _config_of(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("its config.json holds no object")
    return found


def _looks_like_path(model: str) -> bool:
    return model.startswith(("/", ".", "~")) or model.count("/") > 1


def _check_folder(folder: Path, model: Path) -> Path:
    """Look for the files without which nothing else need be tried; `model` is the user's word."""
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(model, "there is no config.json in it")
    if not any(folder.glob("*.safetensors")):
        raise ModelNotFoundError(model, "there are no *.safetensors in it, and we read only those")
    return folder


def _download(model: str, source: ModelSource, on_progress: DownloadProgress | None) -> Path:
    from huggingface_hub import snapshot_download

    log.info("Looking for %s on the hub (or in its cache)", model)
    try:
        folder = snapshot_download(
            model,
            revision=source.revision,
            cache_dir=source.download_dir,
            endpoint=source.endpoint,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            tqdm_class=_progress_class(model, on_progress),
        )
    except Exception as error:
        raise ModelNotFoundError(Path(model), _explain(error, source)) from error
    return Path(folder)


def _explain(error: Exception, source: ModelSource) -> str:
    """Say in one sentence why a download failed and what would help."""
    from huggingface_hub import constants, errors

    endpoint = source.endpoint or constants.ENDPOINT
    revision = source.revision or "main"
    folder = "or give a folder that holds the model"
    if isinstance(error, errors.GatedRepoError):
        return (
            "access to it is restricted: accept its terms on the model's page, then set HF_TOKEN "
            f"to a token of that account, {folder}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"there is no revision {revision!r} of it at {endpoint}: check --revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"there is no such model at {endpoint}, or it is private: check the spelling, set "
            f"HF_TOKEN if it is private, {folder}"
        )
    if constants.is_offline_mode():
        return (
            f"HF_HUB_OFFLINE is set and revision {revision!r} is not complete in the cache "
            f"{source.download_dir or constants.HF_HUB_CACHE}: unset it to download once, {folder}"
        )
    return _explain_other(error, endpoint, folder)


def _explain_other(error: Exception, endpoint: str, folder: str) -> str:
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    status = getattr(response, "status_code", None)
    if status in (401, 403):
        return f"{endpoint} refused the token ({status}): set HF_TOKEN to a valid one, {folder}"
    if status is not None:
        return (
            f"{endpoint} answered {status}: try again later, set HF_ENDPOINT to a mirror, {folder}"
        )
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return f"the download could not be written: {error.strerror} ({error.filename})"
    cause = error.__cause__ or error
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0][:200]
    return (
        f"{endpoint} cannot be reached and it is not complete in the cache ({reason}): check the "
        f"network, set HF_ENDPOINT to a mirror, {folder}"
    )


def _progress_class(model: str, on_progress: DownloadProgress | None) -> type[Any]:
    """Make the class that huggingface_hub takes for its progress bars: lines, not bars.

    It makes one for the number of files and some for bytes; those for bytes have unit B.
    """
    from huggingface_hub.utils.tqdm import tqdm

    class Lines(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            self._is_reconstruction = str(kwargs.get("desc", "")).startswith("Reconstructing")
            self._last_line = 0.0
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]
            self.total = kwargs.get("total")

        def update(self, n: float | None = 1) -> None:
            # A disabled bar does not count, and we want its count without its drawing.
            self.n += n or 0
            if self._is_reconstruction and self.total:
                self._report(int(self.n), int(self.total))

        def _report(self, done: int, total: int) -> None:
            if on_progress is not None:
                on_progress(done, total)
            now = time.monotonic()
            if now - self._last_line >= _SECONDS_BETWEEN_LINES or done >= total:
                self._last_line = now
                percent = 100 * done // total
                log.info("Downloading %s: %d%% of %s", model, percent, format_bytes(total))

    return Lines
