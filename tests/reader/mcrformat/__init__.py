"""Reads the checkpoint stores of mcrEngine.

Written from the pages of `docs/format` alone. Each function names the section that it follows; read it with that
page beside it. Names of pages are written as in `container.md, 7.2`.
"""
