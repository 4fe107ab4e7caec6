"""Writing: selection -> target -> objects -> the compiled loops: what `read` does, the other way round."""
