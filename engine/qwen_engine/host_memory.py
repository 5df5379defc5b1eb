"""Memory of the process in huge pages, put in place while nothing else is to be done.

Used by `launch` and the server for the KV cache, and by `layers.pages` for tensors. A step
reads every weight once, so with pages of 4 KiB it walks page tables for each of 300,000 pages of
Qwen3-0.6B; and the first touch of memory takes the system from 0.5 s a GiB to 2 s in a virtual
machine that has never used it. Knows no torch.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

HUGE_PAGE = 2**21  # bytes, on x86-64 and on arm64 with pages of 4 KiB
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
        self._lock = threading.Lock()  # held while pages are put in place
        self._pieces = self._all_pieces(1)

    def start_to_populate(self, num_parts: int) -> None:
        """Have a thread put pages in place until `begin_to_use`.

        It goes through the parts side by side, so that what lies first in each is there first.
        """
        self._pieces = self._all_pieces(num_parts)
        threading.Thread(target=self._populate_unused, name="memory", daemon=True).start()

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

    def _populate_unused(self) -> None:
        # By writing: a fault locks its own mapping, madvise all of the process's, and the thread
        # that imports meanwhile makes a thousand.
        while not self._is_used:
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


def resident_bytes() -> int:
    """Return the process's resident set; 0 where nothing says (not Linux)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0
