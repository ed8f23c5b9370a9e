"""One model over several processes that `torchrun` has started, on `torch.distributed`."""
