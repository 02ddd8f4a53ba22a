"""What `arm_kernels.py` is made of: programs that are counted, the counter, the simulation."""
