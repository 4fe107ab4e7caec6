"""What a batch is: chunks cut into segments and batches, how large these are, and the streams that lie in them."""
