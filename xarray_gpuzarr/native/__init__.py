"""Compiled loops that release the GIL: many chunks read, decoded and placed, or encoded and written, in one call.

Optional: whoever calls them has another way, for what they do not know and for installations without them. The decoders
that they call are those of numcodecs' libraries, and of libdeflate.
"""
