"""Makes the small golden models of the further families: tiny Hugging Face checkpoints, and what PyTorch computes with
them in fp32.

usage: python make_families.py OUT_DIR          (torch, transformers, safetensors from PyPI; one thread; CPU)

For each family it writes OUT_DIR/NAME/{config.json, model.safetensors, golden.safetensors}. golden.safetensors holds
input_ids, labels (int64, [2 leaves, 2, T], labels already shifted, -100 ignored); logits of leaf 0; losses [2], each
leaf's sum of negative log-likelihoods; grad.NAME, the gradient of both leaves' summed loss.
"""
import os, sys
import torch, torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM)

torch.set_num_threads(1)
V, T = 40, 12
SIZES = dict(vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=T, bos_token_id=1, eos_token_id=2, pad_token_id=None)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 6, "rope_theta": 1000.0}
FAMILIES = {
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=3, rms_norm_eps=1e-5)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True, rms_norm_eps=1e-6)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=6, rms_norm_eps=1e-6)),
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config(**SIZES, no_rope_layers=[1, 0], tie_word_embeddings=True)),
    "llama_scaled": (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                                                   rope_parameters=LLAMA3)),
}


def leaves():
    x = torch.randint(0, V, (2, 2, T + 1), generator=torch.Generator().manual_seed(7))
    ids, labels = x[:, :, :-1].clone(), x[:, :, 1:].clone()
    labels[1, 0, :5] = -100
    return ids, labels


def main(out):
    ids, labels = leaves()
    for name, (cls, config) in FAMILIES.items():
        torch.manual_seed(1234)
        config._attn_implementation = "eager"
        model = cls(config).float().eval()
        with torch.no_grad():
            for p in model.parameters():  # away from zero biases and unit norms, so that every gradient path shows
                p.add_(0.2 * torch.randn_like(p))
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        model.save_pretrained(folder, safe_serialization=True)
        losses, tensors = [], {"input_ids": ids, "labels": labels}
        for leaf in range(2):
            z = model(input_ids=ids[leaf], use_cache=False).logits
            if leaf == 0:
                tensors["logits"] = z.detach()
            losses.append(F.cross_entropy(z.reshape(-1, V), labels[leaf].reshape(-1), ignore_index=-100, reduction="sum"))
        sum(losses).backward()
        tensors["losses"] = torch.stack(losses).detach()
        tensors.update({"grad." + k: p.grad for k, p in model.named_parameters()})
        save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(folder, "golden.safetensors"))
        print(name, sum(p.numel() for p in model.parameters()), [float(x) for x in losses])


main(sys.argv[1])
