"""Writes rope_table.json: config.json texts, and the inverse frequencies and cos/sin that `transformers` makes of them.

usage: make_goldens.py > rope_table.json       needs torch and transformers (5.24.0)
All of it in F32, as `transformers` computes it.
"""
import json
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

BASE = dict(hidden_size=128, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=64,
            max_position_embeddings=131072, rms_norm_eps=1e-6, hidden_act="silu")
CASES = {
    "none_64": dict(head_dim=64, rope_theta=10000.0),
    "none_128_theta_1e6": dict(head_dim=128, rope_theta=1000000.0),
    "linear": dict(head_dim=64, rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0}),
    "llama3_1": dict(head_dim=128, rope_theta=500000.0, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "llama3_2_parameters": dict(head_dim=64, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}),
    "yarn_qwen3": dict(head_dim=128, rope_theta=1000000.0, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
    "yarn_attention_factor": dict(head_dim=64, rope_theta=10000.0, rope_scaling={
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "attention_factor": 0.8, "beta_fast": 16.0, "beta_slow": 2.0}),
    "yarn_mscale_no_truncate": dict(head_dim=96, rope_theta=150000.0, rope_scaling={
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False}),
    "yarn_no_original": dict(head_dim=64, rope_theta=10000.0, rope_scaling={"rope_type": "yarn", "factor": 2.0}),
}


def rounded(x):
    """Nine digits tell every F32 apart."""
    if isinstance(x, dict):
        return {k: v if k == "config" else rounded(v) for k, v in x.items()}
    if isinstance(x, list):
        return [rounded(v) for v in x]
    return float(f"{x:.9g}") if isinstance(x, float) else x


def main():
    out = {}
    for name, extra in CASES.items():
        config = dict(BASE, **json.loads(json.dumps(extra)))
        rope = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(config))))
        positions = torch.tensor([[0, 1, 2, 100, 1000]])
        cos, sin = rope(torch.zeros(1), positions)
        half = config["head_dim"] // 2
        config.update(architectures=["LlamaForCausalLM"], model_type="llama")
        out[name] = dict(config=config, attention_factor=float(rope.attention_scaling), inv_freq=[float(x) for x in rope.inv_freq],
                         positions=positions[0].tolist(), cos=[[float(x) for x in row[:half]] for row in cos[0]],
                         sin=[[float(x) for x in row[:half]] for row in sin[0]])
    text = json.dumps(rounded(out), separators=(",", ":")).replace("},\"", "},\n\"")
    print(text)


main()
