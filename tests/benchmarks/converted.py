"""One GPT-2 checkpoint in the formats of other programs: GGUF for llama.cpp, CTranslate2's own."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

GGUF_NAMES = {
    "wte.weight": "token_embd.weight",
    "wpe.weight": "position_embd.weight",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def to_gguf(checkpoint: Path, target: Path, kind: str) -> None:
    """Write a GGUF file; `kind` is F32, F16, BF16 or Q8_0, for all matrices but the positions."""
    import gguf

    config = json.loads((checkpoint / "config.json").read_text())
    quantization = getattr(gguf.GGMLQuantizationType, kind)
    writer = gguf.GGUFWriter(target, "gpt2")
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config["n_inner"] or 4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(getattr(gguf.LlamaFileType, "ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"))
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        name = name.removeprefix("transformer.")
        if name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        array = (tensor.T if name.startswith("h.") and tensor.ndim == 2 else tensor).float().numpy()
        array = np.ascontiguousarray(array)
        if array.ndim == 2 and name != "wpe.weight" and kind != "F32":
            writer.add_tensor(
                _gguf_name(name), gguf.quants.quantize(array, quantization), raw_dtype=quantization
            )
        else:
            writer.add_tensor(_gguf_name(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    if name.startswith("h."):
        _, layer, name = name.split(".", 2)
        stem, _, kind = name.rpartition(".")
        return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"
    stem, _, kind = name.rpartition(".")
    return f"{GGUF_NAMES[stem]}.{kind}"


def to_ctranslate2(checkpoint: Path, target: Path, quantization: str) -> None:
    """Write a CTranslate2 folder; `quantization` is float32 or int8. Tokens are named by their ids."""
    from ctranslate2.converters.transformers import GPT2Loader

    model = GPT2LMHeadModel.from_pretrained(checkpoint, dtype=torch.float32)
    spec = GPT2Loader().get_model_spec(model)
    spec.register_vocabulary([str(i) for i in range(model.config.vocab_size)])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = str(model.config.vocab_size - 1)
    spec.validate()
    spec.optimize(quantization=quantization)
    target.mkdir(exist_ok=True)
    spec.save(str(target))
