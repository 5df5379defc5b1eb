"""Everything between a fresh clone on a bare machine and a command that works.

Run by the Makefile through install.sh, with whatever Python it found and no package installed:
standard library only, here and in what these modules import.
"""
