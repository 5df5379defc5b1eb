"""The tests, and what they and the demo need: a local cluster and models made on the spot."""
