#!/usr/bin/env python3
"""Writes Qwen3-shaped GGUF v3 files with random weights (needs only python3 + numpy).

usage: make_gguf.py OUTDIR --tokenizer TOKENIZER_JSON [--types bf16,f16,q8_0] [--layers 28] [--seed 1]
All variants of one seed hold the same weights (bf16-rounded values; f16 and q8_0 are made from them).
"""

import argparse, json, os, struct
import numpy as np

GGML = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}
FTYPE = {"f16": 1, "q8_0": 7, "bf16": 32}
ALIGN = 32


def s(x):
    b = x.encode("utf-8")
    return struct.pack("<Q", len(b)) + b


def kv_u32(k, v):
    return s(k) + struct.pack("<II", 4, v)


def kv_f32(k, v):
    return s(k) + struct.pack("<If", 6, v)


def kv_bool(k, v):
    return s(k) + struct.pack("<IB", 7, v)


def kv_str(k, v):
    return s(k) + struct.pack("<I", 8) + s(v)


def kv_arr_str(k, v):
    return s(k) + struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(s, v))


def kv_arr_i32(k, v):
    return s(k) + struct.pack("<IIQ", 9, 5, len(v)) + np.asarray(v, "<i4").tobytes()


def bf16_bits(x):  # round to nearest even
    u = x.view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def encode(bits, t):
    """bits: uint16 bf16 array, rows x cols"""
    if t == "bf16":
        return bits.tobytes()
    x = (bits.astype(np.uint32) << 16).view(np.float32)
    if t == "f16":
        return x.astype(np.float16).tobytes()
    b = x.reshape(-1, 32)
    d = np.abs(b).max(1) / 127.0
    q = np.rint(b * np.divide(1.0, d, out=np.zeros_like(d), where=d > 0)[:, None]).astype(np.int8)
    out = np.empty((b.shape[0], 34), np.uint8)
    out[:, :2] = d.astype(np.float16).view(np.uint8).reshape(-1, 2)
    out[:, 2:] = q.view(np.uint8)
    return out.tobytes()


def nbytes(t, n):
    return {"bf16": 2 * n, "f16": 2 * n, "f32": 4 * n, "q8_0": n // 32 * 34}[t]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("outdir")
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--types", default="bf16,f16,q8_0")
    ap.add_argument("--layers", type=int, default=28)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    os.makedirs(a.outdir, exist_ok=True)
    H, F, NH, NKV, HD, V = 1024, 3072, 16, 8, 128, 151936
    tj = json.load(open(a.tokenizer, encoding="utf-8"))
    vocab = tj["model"]["vocab"]
    toks = [f"[PAD{i}]" for i in range(V)]
    ttype = [5] * V  # 5 = unused
    for k, i in vocab.items():
        toks[i] = k
        ttype[i] = 1
    for t in tj.get("added_tokens", []):
        toks[t["id"]] = t["content"]
        ttype[t["id"]] = 3 if t["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in tj["model"]["merges"]]
    tensors = [("token_embd.weight", (V, H), 0), ("output_norm.weight", (H,), 1)]
    for n in range(a.layers):
        p = f"blk.{n}."
        tensors += [
            (p + "attn_norm.weight", (H,), 1),
            (p + "attn_q.weight", (NH * HD, H), 0),
            (p + "attn_k.weight", (NKV * HD, H), 0),
            (p + "attn_v.weight", (NKV * HD, H), 0),
            (p + "attn_output.weight", (H, NH * HD), 0),
            (p + "attn_q_norm.weight", (HD,), 1),
            (p + "attn_k_norm.weight", (HD,), 1),
            (p + "ffn_norm.weight", (H,), 1),
            (p + "ffn_gate.weight", (F, H), 0),
            (p + "ffn_up.weight", (F, H), 0),
            (p + "ffn_down.weight", (H, F), 0),
        ]
    for t in a.types.split(","):
        kvs = [
            kv_str("general.architecture", "qwen3"),
            kv_str("general.name", f"qwen3-0.6b-random-{t}"),
            kv_u32("general.file_type", FTYPE[t]),
            kv_u32("general.quantization_version", 2),
            kv_u32("general.alignment", ALIGN),
            kv_u32("qwen3.block_count", a.layers),
            kv_u32("qwen3.context_length", 40960),
            kv_u32("qwen3.embedding_length", H),
            kv_u32("qwen3.feed_forward_length", F),
            kv_u32("qwen3.attention.head_count", NH),
            kv_u32("qwen3.attention.head_count_kv", NKV),
            kv_u32("qwen3.attention.key_length", HD),
            kv_u32("qwen3.attention.value_length", HD),
            kv_f32("qwen3.rope.freq_base", 1e6),
            kv_f32("qwen3.attention.layer_norm_rms_epsilon", 1e-6),
            kv_u32("qwen3.vocab_size", V),
            kv_str("tokenizer.ggml.model", "gpt2"),
            kv_str("tokenizer.ggml.pre", "qwen2"),
            kv_arr_str("tokenizer.ggml.tokens", toks),
            kv_arr_i32("tokenizer.ggml.token_type", ttype),
            kv_arr_str("tokenizer.ggml.merges", merges),
            kv_u32("tokenizer.ggml.eos_token_id", 151645),
            kv_u32("tokenizer.ggml.padding_token_id", 151643),
            kv_u32("tokenizer.ggml.bos_token_id", 151643),
            kv_bool("tokenizer.ggml.add_bos_token", 0),
        ]
        infos = b""
        off = 0
        for name, shape, kind in tensors:
            tt = "f32" if kind == 1 else t
            n = int(np.prod(shape))
            dims = shape[::-1]  # ne[0] = fastest = in-features
            infos += (
                s(name)
                + struct.pack("<I", len(dims))
                + b"".join(struct.pack("<Q", d) for d in dims)
                + struct.pack("<IQ", GGML[tt], off)
            )
            off += (nbytes(tt, n) + ALIGN - 1) // ALIGN * ALIGN
        path = os.path.join(a.outdir, f"qwen3-0.6b-random-{t}.gguf")
        rng = np.random.default_rng(a.seed)
        with open(path, "wb") as f:
            f.write(
                b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kvs)) + b"".join(kvs) + infos
            )
            f.write(b"\0" * (-f.tell() % ALIGN))
            for name, shape, kind in tensors:
                if kind == 1:
                    b = np.ones(shape, np.float32).tobytes()
                    f.write(b + b"\0" * (-len(b) % ALIGN))
                    continue
                rows, cols = shape
                std = 0.02 if name != "token_embd.weight" else 0.02
                total = 0
                for r0 in range(0, rows, 8192):
                    x = rng.standard_normal(
                        (min(8192, rows - r0), cols), dtype=np.float32
                    ) * np.float32(std)
                    b = encode(bf16_bits(x), t)
                    f.write(b)
                    total += len(b)
                f.write(b"\0" * (-total % ALIGN))
        print(path, os.path.getsize(path))


main()
