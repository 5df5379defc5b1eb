"""From pictures to what the model takes: decoding, sizes, patches, placeholders, positions.

Used by the server, which turns what clients send into media, and by scheduler and worker, which
follow the placeholders. Importing the package imports nothing: `spans` and `block_keys` know
neither numpy nor torch, `images` and `video` bring Pillow and PyAV.
"""
