"""Reading and writing Paddle Lite's `.nb` files (naive buffer, meta version 2).

format   constants of the container and of its FlatBuffers schema
flat     bounds-checked FlatBuffers tables
program  the program as plain dataclasses, decoded and encoded
reader   NbFile: a mapped, checked file
writer   NbWriter: streams tensors into an aligned file
bundle   the zip archive behind the last tensor
tiles    the order in which int8 weights lie
rewrite  aligned and re-targeted copies
inspect  what a file holds, as a dict and as text
"""

from __future__ import annotations
