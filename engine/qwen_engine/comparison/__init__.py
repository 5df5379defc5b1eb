"""`qwen-engine bench --against transformers`: both on this machine, with the user's checkpoint.

`command` starts a process for each side and each kind of work, so that no figure of memory has
another's remains in it; `__main__` is such a process; `work` says what is measured, `sides` how
each side does it, `table` how it is shown.
"""
