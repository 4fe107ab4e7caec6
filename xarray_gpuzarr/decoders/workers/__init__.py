"""What a client without a GPU has in place of the CUDA decoder, while a cluster's workers have one."""
