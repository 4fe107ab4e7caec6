"""What is read: arrays and stores, from a fixed seed."""
