"""The decoder of a client without a GPU, whose cluster has workers with GPUs."""
