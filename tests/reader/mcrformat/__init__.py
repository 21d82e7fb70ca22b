"""Reads the checkpoint stores of mcrEngine.

This package was written only from the pages of `docs/format`. Each function names the section that it implements, as
in `container.md, 7.2`. Read the function together with this section.
"""
