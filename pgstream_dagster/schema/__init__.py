"""
Tables as they were at a position: columns, types and keys, and how two versions correspond.

Pure; imports nothing of the pipeline. Read `table`, `versions`, `align`, `text`.
"""
