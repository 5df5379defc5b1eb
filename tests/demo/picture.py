"""The demo's picture: drawn here, shown in the terminal, with a question and its one true answer.

Called by __main__. The pictures are of the kind that the tiny model of tests/models has learnt.
"""

import base64
import io
import sys
from pathlib import Path

from PIL import Image

from tests.cluster.paths import REPOSITORY, cache_dir
from tests.models.seeing_data import draw_picture

NAME = "qwen3-vl-tiny"
SAMPLE = REPOSITORY / "crds" / "samples" / f"{NAME}.yaml"
QUESTION, TRUTH = "Where is the red circle?", "Left of the blue square."
_COLUMNS = 32


def draw() -> tuple[Path, str]:
    """Return the picture's file, for a person to open, and its data URL."""
    picture = draw_picture([("red", "circle", (24, 90), 84), ("blue", "square", (152, 76), 80)])
    encoded = io.BytesIO()
    picture.save(encoded, "PNG")
    file = cache_dir() / "demo-picture.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encoded.getvalue())
    if sys.stdout.isatty():
        _show(picture)
    return file, f"data:image/png;base64,{base64.b64encode(encoded.getvalue()).decode()}"


def _show(picture: Image.Image) -> None:
    """Print it small, two rows of pixels to a line: the upper one is ink, the lower one paper."""
    pixels = picture.resize((_COLUMNS, _COLUMNS)).load()
    assert pixels is not None
    for row in range(0, _COLUMNS, 2):
        cells = ((pixels[x, row], pixels[x, row + 1]) for x in range(_COLUMNS))
        print("  " + "".join(_cell(upper, lower) for upper, lower in cells) + "\033[0m")


def _cell(*colours: object) -> str:
    upper, lower = (";".join(map(str, colour)) for colour in colours)  # type: ignore[call-overload]
    return f"\033[38;2;{upper};48;2;{lower}m▀"
