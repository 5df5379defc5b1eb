"""Pictures and context share what is left of the memory: how large both are.

Half of a context is for text, so pictures are halved until two of them (of what a request may
have) fit into the context that remains. More memory gives larger pictures or a longer context,
never a shorter one: where pictures had to be halved, the context stops at what the larger ones
would have needed. Called by `settle` and `relax`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qwen_engine.planning.draft import Draft
from qwen_engine.planning.fit import fits, largest_context
from qwen_engine.planning.quantities import round_down

_CONTEXT_STEP = 256


def with_smaller_pictures(draft: Draft) -> Iterator[Draft]:
    """Yield the draft, then such with ever smaller pictures where their size is planned."""
    yield draft
    if draft.pictures is not None:
        for pictures in draft.pictures.smaller():
            yield replace(draft, pictures=pictures)


def smallest_pictures(draft: Draft) -> Draft:
    """Return the draft with the smallest pictures that are planned."""
    *_, last = with_smaller_pictures(draft)
    return last


def fit_pictures(draft: Draft) -> Draft:
    """Return the draft with the largest pictures that fit beside its context, else the smallest."""
    drafts = with_smaller_pictures(draft)
    return next((each for each in drafts if fits(each)), smallest_pictures(draft))


def fit_context(draft: Draft, *, shortest: int) -> Draft:
    """Return the draft with the largest pictures whose context fits; as it was if none does."""
    most, last = draft.step.max_model_len, smallest_pictures(draft)
    for each in with_smaller_pictures(draft):
        length = min(most, round_down(largest_context(each), _CONTEXT_STEP))
        needed = 2 * each.pictures.request_tokens if each.pictures is not None else 0
        if length >= max(shortest, needed) or (each == last and length >= shortest):
            return each.with_context(length)
        most = min(most, max(needed, shortest))
    return last
