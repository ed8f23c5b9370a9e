"""The decode engine for CPUs: kernels in C, called by ctypes, on the weights where they lie."""
