"""Chainlit in an environment of its own: its packages would pin ours.

Called by __main__; `tests/contract/test_chainlit.py` runs the program. Nothing of ours is in there.
"""

import sys
from pathlib import Path

from tests.cluster.paths import cache_dir
from tests.setup.steps import SetupError, step
from tests.setup.venv import make_venv_of_its_own

REQUIREMENTS = ("chainlit==2.12.0", "openai==3.57.0")  # the page, and the client in its example


def chainlit_program() -> Path:
    """Return where `ensure_chainlit` puts it."""
    return cache_dir() / "peers" / "chainlit" / "bin" / "chainlit"


def ensure_chainlit() -> None:
    """Install it unless it is there; where it can't be had, say what is lost."""
    target = chainlit_program().parents[1]
    stamp, wanted = target / ".installed", "\n".join((*REQUIREMENTS, sys.version))
    if stamp.exists() and stamp.read_text() == wanted:
        return
    try:
        with step("Chainlit, in an environment of its own (a minute when not cached)"):
            make_venv_of_its_own(target, REQUIREMENTS)
    except SetupError as error:
        print(f"• missing: Chainlit; its test will be skipped: {error}", flush=True)
    else:
        stamp.write_text(wanted)
