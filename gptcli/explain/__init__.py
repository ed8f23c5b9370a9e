"""A model opened: functions take a model and token ids, and give plain data. Nothing is drawn here.

trace          one forward pass with everything inside it: the residual stream, attention, activations
predict        what comes next: top tokens, the log-probability and rank of each actual token, perplexity
layers         statistics of every sub-layer
lens           what each layer would predict, read through the final norm and head
journey        every module in the order of execution, with shapes and FLOPs
gradients      how gradients shrink with depth, with shortcuts and without
"""
