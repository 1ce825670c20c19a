"""Makes the golden GGUF files: every kind of tensor that is read, and what the gguf package widens it to; and the golden
Mistral as llama.cpp's converter writes it.

usage: python make_gguf.py OUT_DIR          (gguf, numpy, safetensors from PyPI)

It writes OUT_DIR/gguf/kinds.gguf (one tensor a kind, random bytes under small scales) and OUT_DIR/gguf/kinds.safetensors
(the same names, fp32), and OUT_DIR/gguf/mistral.gguf of OUT_DIR/mistral.
"""
import json, os, sys
import numpy as np
from gguf import GGMLQuantizationType as Q, GGUFWriter
from gguf.quants import dequantize
from safetensors.numpy import load_file, save_file

rng = np.random.default_rng(7)


def half(n):
    return rng.uniform(-2, 2, n).astype(np.float16).view(np.uint8).reshape(n, 2)


def blocks(kind, n):
    """n random blocks; scales are ordinary halves, everything else any byte."""
    raw = lambda size: rng.integers(0, 256, (n, size), dtype=np.uint8)
    parts = {
        Q.Q8_0: lambda: [half(n), raw(32)],
        Q.Q4_0: lambda: [half(n), raw(16)],
        Q.Q4_1: lambda: [half(n), half(n), raw(16)],
        Q.Q4_K: lambda: [half(n), half(n), raw(12), raw(128)],
        Q.Q6_K: lambda: [raw(128), raw(64), raw(16), half(n)],
    }
    return np.concatenate(parts[kind](), axis=1)


def permute(x, heads):
    """convert_hf_to_gguf.py, LlamaModel.permute."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def model(out, folder):
    config = json.load(open(os.path.join(out, "mistral", "config.json")))
    writer = GGUFWriter(os.path.join(folder, "mistral.gguf"), "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = ["<|im_start|>", "<|im_end|>", "Ċ", "Ġ"] + [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens += ["th"] + [str(digit) for digit in range(9)]
    assert len(tokens) == config["vocab_size"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}{{ m['role'] + ' ' + m['content'] + '<|im_end|>' }}{% endfor %}")
    names = {"embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output", "mlp.": "ffn_", "self_attn.": "attn_",
             "_proj": "", "layers": "blk", "model.": ""}
    for name, x in load_file(os.path.join(out, "mistral", "model.safetensors")).items():
        if "q_proj" in name or "k_proj" in name:
            x = permute(x, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        for theirs, ggufs in names.items():
            name = name.replace(theirs, ggufs)
        writer.add_tensor(name, np.ascontiguousarray(x))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


def main(out):
    folder = os.path.join(out, "gguf")
    os.makedirs(folder, exist_ok=True)
    writer, wide = GGUFWriter(os.path.join(folder, "kinds.gguf"), "none"), {}
    plain = rng.normal(size=(3, 5)).astype(np.float32)
    writer.add_tensor("F32", plain)
    writer.add_tensor("F16", plain.astype(np.float16))
    bf16 = (plain.view(np.uint32) >> 16).astype(np.uint16)
    writer.add_tensor("BF16", bf16.view(np.uint8), raw_dtype=Q.BF16)
    wide.update(F32=plain, F16=plain.astype(np.float16).astype(np.float32),
                BF16=(bf16.astype(np.uint32) << 16).view(np.float32))
    for kind in (Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q4_K, Q.Q6_K):
        data = blocks(kind, 4).reshape(2, -1)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        wide[kind.name] = dequantize(data, kind).astype(np.float32)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    save_file({k: np.ascontiguousarray(v) for k, v in wide.items()}, os.path.join(folder, "kinds.safetensors"))
    model(out, folder)
    print({k: v.shape for k, v in wide.items()})


main(sys.argv[1])
