"""What the machine gives: devices, memory, signals, and the environment of torchrun."""
