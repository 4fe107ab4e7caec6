"""What a shard costs the host that gives it to a GPU; ``python -m benchmarks.host_cost``."""
