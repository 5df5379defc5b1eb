"""What torch does not do fast enough, in C++; optional.

`native.cpp` is built with the package where a compiler is at hand; `library` finds and calls it.
Without it, or on a processor that it does not know, everything runs on torch alone.
"""
