"""Token ids → text: however it is cut, the text is the same, and nothing is shown too early."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_engine.detokenizer import ByteDetokenizer, StopMatcher, WindowDetokenizer


class Bytes:
    """A vocabulary of the 256 bytes."""

    def piece(self, token_id: int) -> bytes:
        return bytes([token_id])


def feed_all(stops: list[str], chunks: list[str], *, include_match: bool = False) -> list[str]:
    matcher = StopMatcher(stops, include_match=include_match)
    shown = []
    for chunk in chunks:
        shown.append(matcher.feed(chunk))
        if matcher.matched is not None:
            return shown
    return [*shown, matcher.flush()]


@given(st.text(), st.integers(1, 5))
def test_bytes_give_the_text_back_however_they_are_cut(text: str, size: int) -> None:
    ids = list(text.encode())
    detokenizer = ByteDetokenizer(Bytes())
    pieces = [detokenizer.feed(ids[at : at + size]) for at in range(0, len(ids), size)]
    assert "".join(pieces) + detokenizer.flush() == text


def test_half_a_character_waits_for_its_other_half() -> None:
    detokenizer = ByteDetokenizer(Bytes())
    first, second, third = "€".encode()
    assert detokenizer.feed([first]) == ""
    assert detokenizer.feed([second]) == ""
    assert detokenizer.feed([third]) == "€"


def test_a_literal_replacement_character_passes_at_once() -> None:
    detokenizer = ByteDetokenizer(Bytes())
    assert detokenizer.feed("\ufffd".encode()) == "\ufffd"


def test_half_a_character_at_the_end_is_shown_as_replacement() -> None:
    detokenizer = ByteDetokenizer(Bytes())
    assert detokenizer.feed("é".encode()[:1]) == ""
    assert detokenizer.flush() == "\ufffd"


class Sentencepiece:
    """Decodes like a sentencepiece vocabulary with byte fallback: a leading space is dropped."""

    def __init__(self) -> None:
        self.longest = 0

    def __call__(self, token_ids: list[int]) -> str:
        self.longest = max(self.longest, len(token_ids))
        text = b"".join(bytes([i]) if i < 256 else b" word" for i in token_ids)
        return text.decode(errors="replace").removeprefix(" ")


def test_a_window_keeps_spaces_and_characters_and_stays_short() -> None:
    ids = [256, 256, *"日本".encode(), 256, *"é\ufffd".encode(), 256] * 50
    decode = Sentencepiece()
    detokenizer = WindowDetokenizer(decode, context=[256])
    text = "".join(detokenizer.feed([token_id]) for token_id in ids) + detokenizer.flush()
    assert text == " word word日本 wordé\ufffd word" * 50
    assert decode.longest < 12


def test_a_window_shows_a_literal_replacement_character_without_waiting_for_the_end() -> None:
    detokenizer = WindowDetokenizer(Sentencepiece(), context=[])
    assert detokenizer.feed([256, *"\ufffd".encode()]) == "word"
    assert detokenizer.feed([ord("a")]) == "\ufffda"


def test_nothing_of_a_stop_string_is_shown_before_it_is_complete() -> None:
    shown = feed_all(["DEFGHIJ"], ["DEF", "G", "HI", "JK"])
    assert shown == ["", "", "", ""]


def test_text_held_back_in_vain_is_shown_at_the_end() -> None:
    assert "".join(feed_all(["DEFGHIJ"], ["ABC", "DEF", "G"])) == "ABCDEFG"


def test_a_false_start_inside_a_stop_string_does_not_lose_the_match() -> None:
    assert "".join(feed_all(["aab"], ["x", "aa", "ab", "y"])) == "xa"


def test_the_stop_string_is_part_of_the_text_only_if_asked_for() -> None:
    assert "".join(feed_all(["STOP"], ["go ST", "OP on"])) == "go "
    assert "".join(feed_all(["STOP"], ["go ST", "OP on"], include_match=True)) == "go STOP"


@pytest.mark.parametrize("stops", [["bc", "abc"], ["abc", "bc"]])
def test_of_two_stops_that_end_together_the_longer_wins(stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert matcher.feed("xabc") == "x"
    assert matcher.matched == "abc"


@given(
    st.text("ab", max_size=40),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_stops_cut_at_the_same_place_however_the_text_is_chunked(
    text: str, stops: list[str], source: random.Random
) -> None:
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    if ends:
        start = min(min(ends) - len(s) for s in stops if text[: min(ends)].endswith(s))
        expected = text[:start]
    else:
        expected = text
    chunks, at = [], 0
    while at < len(text):
        size = source.randint(1, 4)
        chunks.append(text[at : at + size])
        at += size
    assert "".join(feed_all(stops, chunks)) == expected
