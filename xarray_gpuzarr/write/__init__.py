"""Writing: a selection is cut into objects, which the compiled loops encode and store."""
