"""Memory of the process in huge pages, put in place while nothing else is to be done.

Used by `launch` and the server for weights and KV cache, and by `layers.pages` for tensors. A step
reads every weight once, so with pages of 4 KiB it walks page tables for each of 300,000 pages of
Qwen3-0.6B; and the first touch of memory takes the system from 0.5 s a GiB to 2 s in a virtual
machine that has never used it. Knows no torch.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

HUGE_PAGE = 2**21  # bytes, on x86-64 and on arm64 with pages of 4 KiB
_ALIGNMENT = 64  # bytes, a cache line
_GAPS = 4096 * _ALIGNMENT  # between so many tensors
_MADV_POPULATE_WRITE = 23  # Linux 5.14: put pages in place and leave what is in them


class HostMemory:
    """`num_bytes` of zeros that begin on a huge page and are read and written as `view`.

    Linux gives huge pages where /sys/kernel/mm/transparent_hugepage/enabled says madvise or
    always. Whole ones only are asked for: a last one, partly used, would take 1 MiB too much on
    average.
    """

    def __init__(self, num_bytes: int) -> None:
        """Reserve addresses; pages come when they are touched, or are put in place before.

        Raises:
            OSError, OverflowError, ValueError: it cannot be had.
        """
        self.num_bytes = num_bytes
        # Older kernels begin a mapping anywhere.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._mapping = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=flags)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        start = -first % HUGE_PAGE
        self._address = first + start
        self.view = memoryview(self._mapping)[start : start + num_bytes]
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if advice is not None and num_bytes >= HUGE_PAGE:
            self._mapping.madvise(advice, start, num_bytes // HUGE_PAGE * HUGE_PAGE)
        # By ctypes, which lets go of the interpreter lock; mmap's own calls keep it.
        self._library = ctypes.CDLL(None, use_errno=True)
        self._is_used = False
        self._taken = 0
        self._lock = threading.Lock()  # held while pages are put in place
        self._pieces = self._all_pieces(1)

    def lie_in_parts(self, num_parts: int) -> None:
        """Have the parts be put in place side by side: what lies first in each is there first."""
        self._pieces = self._all_pieces(num_parts)

    def take(self, num_bytes: int) -> int | None:
        """Return where the next so many bytes begin; None where there are not as many left."""
        start = -(-self._taken // _ALIGNMENT) * _ALIGNMENT
        if start + num_bytes > self.num_bytes:
            return None
        self._taken = start + num_bytes
        return start

    def begin_to_use(self) -> None:
        """Call before anything is written: from then on no page is overwritten."""
        self._is_used = True
        with self._lock:
            pass  # the piece in hand is done

    def populate_while(self, may_go_on: Callable[[], bool]) -> bool:
        """Put pages in place, whatever is in them stays; return whether all are.

        Asks between pieces, of which each takes some milliseconds.
        """
        with self._lock:
            while may_go_on():
                piece = next(self._pieces, None)
                if piece is None or not self._add_pages(*piece):
                    return True
        return False

    def missing_bytes(self) -> int:
        """Return the bytes whose pages are not yet in place."""
        first = self._address // mmap.PAGESIZE * mmap.PAGESIZE
        length = self._address + self.num_bytes - first
        seen = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if self._library.mincore(ctypes.c_void_p(first), ctypes.c_size_t(length), seen):
            return 0
        return min(self.num_bytes, seen.raw.count(b"\0", 0, len(seen)) * mmap.PAGESIZE)

    def populate_unused(self, most_pieces: int | None = None) -> None:
        """Put pages in place until `begin_to_use`, by pieces of a huge page each.

        By writing: a fault locks its own mapping, madvise all of the process's, and the thread
        that imports meanwhile makes a thousand.
        """
        for _ in itertools.count() if most_pieces is None else range(most_pieces):
            with self._lock:
                piece = None if self._is_used else next(self._pieces, None)
                if piece is None:
                    return
                ctypes.memset(self._address + piece[0], 0, piece[1])

    def _all_pieces(self, num_parts: int) -> Iterator[tuple[int, int]]:
        """Yield starts and lengths, at most a huge page each."""
        size = -(-self.num_bytes // num_parts)
        for offset in range(0, size, HUGE_PAGE):
            for part in range(0, self.num_bytes, size):
                length = min(HUGE_PAGE, size - offset, self.num_bytes - part - offset)
                if length > 0:
                    yield part + offset, length

    def _add_pages(self, start: int, length: int) -> bool:
        """Put these in place unless they are; False where the system cannot (before Linux 5.14)."""
        address = self._address + start
        first = address // mmap.PAGESIZE * mmap.PAGESIZE
        place, size = ctypes.c_void_p(first), ctypes.c_size_t(address + length - first)
        return not self._library.madvise(place, size, _MADV_POPULATE_WRITE)


@dataclass(frozen=True, slots=True)
class StartMemory:
    """What a model on a CPU takes, reserved before torch is there.

    Attributes:
        weights: for its parameters.
        cache: for keys and values.
        num_parts: tensors of the cache.
    """

    weights: HostMemory
    cache: HostMemory
    num_parts: int

    @classmethod
    def reserve(cls, *, weight_bytes: int, cache_bytes: int, num_parts: int) -> Self:
        """Reserve both. Raises as HostMemory does."""
        cache = HostMemory(cache_bytes)
        cache.lie_in_parts(num_parts)
        return cls(HostMemory(weight_bytes + _GAPS), cache, num_parts)

    def start_to_populate(self) -> None:
        """Have a thread put in place, until it is used, what is needed first.

        That is the beginning of each part of the cache, which the first request fills, and the
        weights: the rest of the cache has time until nobody asks for anything.
        """
        threading.Thread(target=self._populate, name="memory", daemon=True).start()

    def _populate(self) -> None:
        self.cache.populate_unused(self.num_parts)
        self.weights.populate_unused()


def return_free_memory() -> None:
    """Give the system back what the C library keeps of freed memory (glibc; elsewhere nothing).

    Takes milliseconds for each 100 MB that go, and as long again when they are next touched.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """Return the process's resident set; 0 where nothing says (not Linux)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0
