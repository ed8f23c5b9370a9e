"""The one table of activation functions. It is plain Python, so that a config is checked without torch.

A new activation is a line here and a class in `gptcli/model/activations.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Activation:
    """An activation's class in `gptcli/model/activations.py`, its label in plots, and its other names.

    `huggingface` are its names in transformers' ACT2FN; `save_model` writes the first of them.
    """

    class_name: str
    label: str
    huggingface: tuple[str, ...] = ()


ACTIVATIONS = {
    "relu": Activation("ReLU", "ReLU", ("relu",)),
    "gelu": Activation("ExactGELU", "GELU (exact)", ("gelu", "gelu_python")),
    # The others compute gelu_new's tanh form in another order of operations.
    "gelu_tanh": Activation(
        "GELU",
        "GELU (tanh)",
        ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"),
    ),
    "gelu_sigmoid": Activation("SigmoidGELU", "GELU (sigmoid)", ("quick_gelu",)),
    "sigmoid": Activation("Sigmoid", "Sigmoid", ("sigmoid",)),
    "tanh": Activation("Tanh", "Tanh", ("tanh",)),
    # transformers' swish is SiLU; our swish has a β.
    "silu": Activation("SiLU", "SiLU", ("silu", "swish")),
    "swish": Activation("Swish", "Swish (β = 1)"),
    "identity": Activation("Identity", "Identity", ("linear",)),
}


def huggingface_activations() -> dict[str, str]:
    """Return transformers' name → our name, for every activation that both have."""
    return {theirs: name for name, activation in ACTIVATIONS.items() for theirs in activation.huggingface}


def canonical_activation(name: str) -> str:
    """Return our name of an activation that is given by ours or by transformers'; ours comes first."""
    return name if name in ACTIVATIONS else huggingface_activations().get(name, name)
