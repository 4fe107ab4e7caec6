"""Writing: selection, target, objects, and the compiled loops that encode them."""
