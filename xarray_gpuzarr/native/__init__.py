"""Compiled loops, which read, decode and place many chunks, or encode and write them, in one call without the GIL.

The loops are optional. Every caller has a path in Python for codecs that the loops do not know, and for installations
without a compiled library. The loops call the codec libraries that numcodecs and deflate bring along.
"""
