#!/usr/bin/env python3
"""Makes the parity goldens in this folder from Hugging Face transformers, in F32 on the CPU.

usage: make_goldens.py OUT_DIR [--only PREFIX] [--smollm2 FILE.gguf --wikitext FILE.raw]

Needs numpy, torch and transformers; the tests need none of them. One JSON file a case:

  config      what the test writes as config.json, either spelling
  weights     how the weights follow from a counter (below); the test's C++ writer makes the same
              bytes (tests/support/random_checkpoint.cc), so no weight file is kept
  sha256      of the data of all safetensors files joined (small cases only)
  prompt      token ids
  positions   prompt positions whose logits are kept, in `logits`: little-endian F32 as hex,
              all of the vocabulary or the entries named in `ids`; `norms` is over all of it
  greedy      the continuation (argmax) and each step's distance from the best to the second logit

Weights: tensor number t (in file order, from 1) of a model with seed s is
uniform(1000 s + t, n), where uniform gives numbers in [-1, 1) from splitmix64 of the element's
index, times a factor by kind, rounded to the file's type. Norms and biases are away from 1 and 0,
so a forgotten one shows. FP8 matrices are codes straight from the hash with a scale a 128 x 128 block.
"""
import argparse
import gzip
import hashlib
import json
import math
import os
import struct

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

# ---- counter-based weights ---------------------------------------------------------------------


def hash64(stream, count):
    """splitmix64 of (stream, index)."""
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint64) + np.uint64(stream) * np.uint64(1 << 32) + np.uint64(1)
        x *= np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return x


def uniform(stream, count):
    return (hash64(stream, count) >> np.uint64(40)).astype(np.float64) / float(1 << 23) - 1.0


def round_to(a, dtype):
    """F32 values as the file's type holds them, and the file's bytes."""
    a = np.ascontiguousarray(a, np.float32)
    if dtype == "F32":
        return a, a.astype("<f4").tobytes()
    if dtype == "F16":
        h = a.astype("<f2")
        return h.astype(np.float32), h.tobytes()
    u = a.view(np.uint32).astype(np.uint64)
    u = (u + np.uint64(0x7FFF) + ((u >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return (u << np.uint64(16)).astype(np.uint32).view(np.float32), u.astype("<u2").tobytes()


def fp8_value(codes):
    """e4m3 codes to F32."""
    exponent = (codes >> 3) & 15
    mantissa = (codes & 7).astype(np.float64)
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent.astype(np.float64) - 7))
    return np.where(codes & 128, -value, value).astype(np.float32)


FP8_BLOCK = 128
FP8_RMS = 140.0  # about the root mean square of a uniformly drawn code's value


class Weights:
    """All tensors of a checkpoint, made one by one. tensors(): (name, file dtype, F32 array, file bytes)."""

    def __init__(self, config, seed, gain=2.0, embed=1.0, dtype="BF16", fp8=False):
        self.config, self.seed, self.gain, self.embed, self.dtype, self.fp8 = config, seed, gain, embed, dtype, fp8

    def spec(self):
        return dict(seed=self.seed, gain=self.gain, embed=self.embed, dtype=self.dtype, fp8=self.fp8)

    def names(self):
        """(name, shape, kind) in file order."""
        c = self.config
        arch, hidden, inner = c["model_type"], c["hidden_size"], c["intermediate_size"]
        heads, kv_heads, head = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        yield "model.embed_tokens.weight", (c["vocab_size"], hidden), "embed"
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            yield p + "input_layernorm.weight", (hidden,), "norm"
            for n, rows in (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head)):
                yield p + f"self_attn.{n}_proj.weight", (rows, hidden), "matrix"
                if arch == "qwen2":
                    yield p + f"self_attn.{n}_proj.bias", (rows,), "bias"
            yield p + "self_attn.o_proj.weight", (hidden, heads * head), "matrix"
            if arch == "qwen3":
                yield p + "self_attn.q_norm.weight", (head,), "norm"
                yield p + "self_attn.k_norm.weight", (head,), "norm"
            yield p + "post_attention_layernorm.weight", (hidden,), "norm"
            for n, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
                yield p + f"mlp.{n}_proj.weight", shape, "matrix"
        yield "model.norm.weight", (hidden,), "norm"
        if not c["tie_word_embeddings"]:
            yield "lm_head.weight", (c["vocab_size"], hidden), "head"

    def tensors(self):
        for t, (name, shape, kind) in enumerate(self.names(), 1):
            stream, count = self.seed * 1000 + t, math.prod(shape)
            if kind == "matrix" and self.fp8:
                h = hash64(stream, count)
                codes = ((h >> np.uint64(40)) % np.uint64(127)).astype(np.uint8) | ((h >> np.uint64(63)) << np.uint64(7)).astype(np.uint8)
                blocks = [-(-n // FP8_BLOCK) for n in shape]
                scale = (1.0 + 0.5 * uniform(stream + 500, math.prod(blocks))) * self.gain / (FP8_RMS * math.sqrt(3 * shape[1]))
                scale = scale.astype(np.float32).reshape(blocks)
                wide = scale.repeat(FP8_BLOCK, 0).repeat(FP8_BLOCK, 1)[: shape[0], : shape[1]]
                codes = codes.reshape(shape)
                yield name, "F8_E4M3", fp8_value(codes) * wide, codes.tobytes()
                yield name + "_scale_inv", "F32", None, scale.astype("<f4").tobytes()
                continue
            r = uniform(stream, count).reshape(shape)
            if kind in ("matrix", "head"):
                r = self.gain * r / math.sqrt(shape[-1])
            elif kind == "embed":
                r = self.embed * r
            else:
                r = (1.0 if kind == "norm" else 0.0) + 0.5 * r
            value, data = round_to(r, self.dtype)
            yield name, self.dtype, value, data


# ---- transformers ------------------------------------------------------------------------------


def load(config, weights):
    """The model in F32 with these weights, and the digest of their file bytes."""
    model = AutoModelForCausalLM.from_config(hf_config(config), attn_implementation="eager", dtype=torch.float32)
    model.eval()
    params = dict(model.named_parameters())
    missing, digest = set(params), hashlib.sha256()
    for name, _, value, data in weights.tensors():
        digest.update(data)
        if value is not None:
            params[name].data.copy_(torch.from_numpy(value))
            missing.discard(name)
    missing -= {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    assert not missing, missing
    return model, digest.hexdigest()


def hf_config(config):
    known = {k: v for k, v in config.items() if k not in ("architectures", "quantization_config", "torch_dtype", "dtype")}
    return AutoConfig.for_model(**known)


def hex32(a):
    return np.ascontiguousarray(a, "<f4").tobytes().hex()


def run(model, prompt, positions, steps, ids=None, top=0):
    """The golden part of a case. `ids`: kept entries of the vocabulary (None: all), with the `top` best of each position."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0].numpy()
        norms = [float(np.linalg.norm(logits[p].astype(np.float64))) for p in positions]
        out = dict(prompt=prompt, positions=positions, norms=norms)
        if ids is None:
            out["logits"] = [hex32(logits[p]) for p in positions]
        else:
            out["ids"] = [sorted(set(ids) | set(np.argsort(-logits[p])[:top].tolist())) for p in positions]
            out["logits"] = [hex32(logits[p][i]) for p, i in zip(positions, out["ids"])]
        tokens, margins, row = list(prompt), [], logits[-1]
        cache = model(torch.tensor([prompt]), use_cache=True).past_key_values
        for step in range(steps):
            best = np.sort(row)[-2:]
            tokens.append(int(row.argmax()))
            margins.append(round(float(best[1] - best[0]), 5))
            if step + 1 < steps:
                o = model(torch.tensor([tokens[-1:]]), past_key_values=cache, use_cache=True)
                cache, row = o.past_key_values, o.logits[0, -1].numpy()
        out["greedy"] = dict(tokens=tokens[len(prompt):], margins=margins)
    return out


def prompt_ids(seed, count, vocab):
    return [int(x) for x in hash64(9_000_000 + seed, count) % np.uint64(vocab)]


# ---- the cases ---------------------------------------------------------------------------------

CLASSES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
LINEAR = dict(rope_type="linear", factor=2.0)


def config(arch, spelling, head, heads=4, kv_heads=2, hidden=64, inner=96, layers=2, vocab=320, tied=False, theta=10000.0, rope=None,
           eps=1e-6, dtype="bfloat16", fp8=False):
    c = dict(architectures=[CLASSES[arch]], model_type=arch, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
             num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head, vocab_size=vocab, hidden_act="silu",
             max_position_embeddings=2048, rms_norm_eps=eps, tie_word_embeddings=tied, attention_bias=False,
             bos_token_id=None, eos_token_id=vocab - 1)
    if spelling == "old":
        c["rope_theta"] = theta
        c["rope_scaling"] = None if rope is None else {("type" if k == "rope_type" and rope is YARN else k): v for k, v in rope.items()}
        c["torch_dtype"] = dtype
    else:
        c["rope_parameters"] = dict(rope or dict(rope_type="default"), rope_theta=theta)
        c["dtype"] = dtype
    if fp8:
        c["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[FP8_BLOCK, FP8_BLOCK])
    return c


# name: (config, how the weights differ from the usual)
TINY = {
    "qwen3_tied_head128": (config("qwen3", "old", 128, tied=True, layers=3, theta=1e6), dict(embed=0.5)),
    "qwen3_untied_head64": (config("qwen3", "new", 64, theta=5e6), {}),
    "qwen3_tied_head80": (config("qwen3", "new", 80, heads=6, kv_heads=2, tied=True), dict(embed=0.5)),
    "qwen3_untied_head96": (config("qwen3", "old", 96, heads=4, kv_heads=4), {}),
    "qwen3_head16_f16": (config("qwen3", "old", 16, heads=8, kv_heads=1, dtype="float16"), dict(dtype="F16")),
    "qwen3_yarn_old": (config("qwen3", "old", 64, rope=YARN), {}),
    "qwen3_yarn_new": (config("qwen3", "new", 128, heads=2, kv_heads=1, rope=YARN, theta=1e6), {}),
    "qwen3_fp8_blocks": (config("qwen3", "old", 64, heads=4, kv_heads=2, hidden=192, inner=272, fp8=True), dict(fp8=True)),
    "qwen2_head64": (config("qwen2", "old", 64, heads=14, kv_heads=2, hidden=128, inner=160, theta=1e6), {}),
    "qwen2_tied_head80": (config("qwen2", "new", 80, tied=True), dict(embed=0.5)),
    "qwen2_head128": (config("qwen2", "new", 128, heads=2, kv_heads=1), {}),
    "qwen2_head96_f32": (config("qwen2", "old", 96, heads=3, kv_heads=1, dtype="float32"), dict(dtype="F32")),
    "llama_head64": (config("llama", "old", 64, heads=9, kv_heads=3, hidden=144, inner=208, eps=1e-5, tied=True), dict(embed=0.5)),
    "llama_head80": (config("llama", "new", 80), {}),
    "llama_head96": (config("llama", "old", 96, hidden=80, inner=112), {}),
    "llama_head128": (config("llama", "new", 128, heads=2, kv_heads=2), {}),
    "llama_head16": (config("llama", "old", 16, layers=4), {}),
    "llama_llama3_rope_old": (config("llama", "old", 64, rope=LLAMA3, theta=500000.0), {}),
    "llama_llama3_rope_new": (config("llama", "new", 128, rope=LLAMA3, theta=500000.0), {}),
    "llama_linear_rope": (config("llama", "old", 64, rope=LINEAR), {}),
}
POSITIONS = [0, 1, 16, 31, 47]
MIN_MARGIN = 0.05  # seeds are tried until every greedy step is this clear, so that BF16 cannot turn one


def write(out, name, golden):
    golden = dict(made_by=f"transformers {transformers.__version__}, torch {torch.__version__}", **golden)
    text = json.dumps(golden, separators=(",", ":")).replace(',"', ',\n"')
    with open(os.path.join(out, name + ".json"), "w") as f:
        f.write(text + "\n")
    print(f"{name}: {len(text)} bytes, smallest margin {min(golden['greedy']['margins'])}")


def tiny(out, only):
    for number, (name, (c, how)) in enumerate(TINY.items(), 1):
        if not name.startswith(only):
            continue
        for attempt in range(50):
            weights = Weights(c, seed=number + 100 * attempt, **how)
            model, digest = load(c, weights)
            got = run(model, prompt_ids(weights.seed, 48, c["vocab_size"]), POSITIONS, 16)
            if min(got["greedy"]["margins"]) >= MIN_MARGIN and len(set(got["greedy"]["tokens"])) > 3:
                break
        else:
            raise SystemExit(f"{name}: no seed with clear margins")
        write(out, name, dict(config=c, weights=weights.spec(), sha256=digest, **got))


def qwen3_0_6b(out, only):
    for layers in (2, 28):
        name = f"qwen3_0.6b_shape_{layers}_layers"
        if not name.startswith(only):
            continue
        c = config("qwen3", "old", 128, heads=16, kv_heads=8, hidden=1024, inner=3072, layers=layers, vocab=151936, tied=True, theta=1e6)
        c["max_position_embeddings"] = 40960
        weights = Weights(c, seed=600 + layers, gain=1.7, embed=0.05)
        model, _ = load(c, weights)
        ids = sorted(set(prompt_ids(1, 250, c["vocab_size"])))
        got = run(model, prompt_ids(weights.seed, 48, c["vocab_size"]), [0, 16, 47], 8, ids, top=16)
        write(out, name, dict(config=c, weights=weights.spec(), **got))


# ---- the real model ----------------------------------------------------------------------------

PROMPTS = [
    "The capital of France is",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n"
    "Write a short poem about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "Once upon a time, in a small village at the foot of a mountain, there lived an old woman who",
]
WINDOWS = 8
WINDOW_TOKENS = 2048


def smollm2_tokenizer(gguf):
    """The GGUF's vocabulary with the splits of its kind: digits one by one, then GPT-2's byte level."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from gguf import GGUFReader
    fields = GGUFReader(gguf).fields
    tokens, merges, kinds = (fields["tokenizer.ggml." + k].contents() for k in ("tokens", "merges", "token_type"))
    t = Tokenizer(models.BPE({w: i for i, w in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(w, special=True, normalized=False) for w, k in zip(tokens, kinds) if k == 3])
    return t


def smollm2(out, gguf, wikitext):
    t = smollm2_tokenizer(gguf)
    model = AutoModelForCausalLM.from_pretrained(os.path.dirname(gguf) or ".", gguf_file=os.path.basename(gguf), dtype=torch.float32,
                                                 attn_implementation="eager")
    model.eval()
    vocab = model.config.vocab_size
    for i, text in enumerate(PROMPTS):
        prompt = t.encode(text, add_special_tokens=False).ids
        positions = sorted({0, len(prompt) // 2, len(prompt) - 1})
        got = run(model, prompt, positions, 32, sorted(set(prompt_ids(2, 200, vocab))), top=32)
        write(out, f"smollm2_{i}", dict(text=text, **got))
    with gzip.open(wikitext) as f:
        ids = t.encode(f.read().decode(), add_special_tokens=False).ids
    windows = []
    for w in range(WINDOWS):
        part = ids[w * WINDOW_TOKENS:(w + 1) * WINDOW_TOKENS]
        with torch.no_grad():
            logits = model(torch.tensor([part])).logits[0]
            nll = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(part[1:]), reduction="none").double().numpy()
        # The first 256 and 512 tokens of a window on their own, for shorter tests.
        windows.append({str(n): float(nll[: n - 1].sum()) for n in (256, 512, WINDOW_TOKENS)})
        print("window", w, "perplexity", math.exp(nll.mean()))
    golden = dict(made_by=f"transformers {transformers.__version__}, torch {torch.__version__}", tokens=len(ids),
                  ids_sha256_u32le=hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest(), window_tokens=WINDOW_TOKENS,
                  nll_of_first_tokens=windows)
    with open(os.path.join(out, "smollm2_wikitext2.json"), "w") as f:
        json.dump(golden, f, indent=1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--only", default="")
    p.add_argument("--smollm2")
    p.add_argument("--wikitext", help="tests/data/wikitext2/wiki.test.head.txt.gz")
    a = p.parse_args()
    tiny(a.out, a.only)
    qwen3_0_6b(a.out, a.only)
    if a.smollm2:
        smollm2(a.out, a.smollm2, a.wikitext)


if __name__ == "__main__":
    main()
