"""The machine below a model: devices, memory, signals, and torchrun's environment."""
