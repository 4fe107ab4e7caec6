"""Which bytes a selection needs, and where every chunk goes: pure arithmetic, known before any chunk is read."""
