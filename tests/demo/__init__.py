"""`make demo`: the whole product in a minute, on a cluster of its own or on yours."""
