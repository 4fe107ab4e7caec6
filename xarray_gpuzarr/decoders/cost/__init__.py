"""How long host and device take for a read, on a machine that was measured."""
