"""Explanations of a model as plain data. The functions take a model and token ids, and draw nothing.

trace          one forward pass with all its insides: the residual stream, attention, activations
scoring        what comes next: the top tokens (`gptcli.api.score` has the scores of a whole text)
layer_stats    statistics of every sub-layer
lens           the prediction of each layer, read through the final norm and the head
module_trace   every module in the order of execution, with shapes and FLOPs
gradients      how gradients shrink with depth, without shortcuts and with them
"""
