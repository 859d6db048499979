#!/usr/bin/env python3
"""Peer figures of llama.cpp on the CPU through llama-cpp-python's low-level calls; random token ids, greedy argmax.

install (builds llama.cpp here: a C++ compiler; about 15 minutes on two cores):
  python3 -m venv VENV && CMAKE_ARGS="-DGGML_NATIVE=ON" VENV/bin/pip install llama-cpp-python==0.3.36
run:  VENV/bin/python peer_llamacpp.py MODEL.gguf --threads 2 --figures load,prefill,decode,batch,prefix
Prints one JSON line a figure, the same shape as those of `quire bench engine`. "batch" sequences hold one prompt's
KV copied into a stream of its own each (kv_unified off), so no memory is shared. "prefix" keeps the prompt's KV in the
sequence and decodes the 16 new tokens. --kv f16|bf16|q8_0|f32, --fa 0|1|auto, --ubatch as llama.cpp names them.
"""

import argparse, ctypes, json, os, statistics as st, time
import numpy as np


def cpu():
    v = list(map(int, open("/proc/stat").readline().split()[1:9]))
    t = os.times()
    return time.perf_counter(), sum(v) - v[3] - v[4], t.user + t.system


def foreign(a, b):
    hz = os.sysconf("SC_CLK_TCK")
    return max(0.0, 100 * ((b[1] - a[1]) / hz - (b[2] - a[2])) / ((b[0] - a[0]) * os.cpu_count()))


def mem(key):
    return next(
        int(l.split()[1]) // 1024 for l in open("/proc/self/status") if l.startswith(key + ":")
    )


def ints(s):
    return [int(x) for x in s.split(",") if x]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--figures", default="load,prefill,decode,batch,prefix")
    ap.add_argument("--kv", default="f16")
    ap.add_argument("--fa", default="auto")
    ap.add_argument("--prompts", type=ints, default=[512, 2048])
    ap.add_argument("--ctx", type=ints, default=[128, 1024, 4096])
    ap.add_argument("--streams", type=int, default=16)
    ap.add_argument("--bctx", type=ints, default=[128, 1024])
    ap.add_argument("--prefix", type=int, default=2048)
    ap.add_argument("--reps", type=int, default=5)
    ap.add_argument("--steps", type=int, default=24)
    ap.add_argument("--ubatch", type=int, default=512)
    a = ap.parse_args()
    want = a.figures.split(",")
    import llama_cpp as L

    quiet = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(quiet, None)
    rng = np.random.default_rng(1)
    base = {
        "engine": f"llama-cpp-python {L.__version__}",
        "model": os.path.basename(a.model),
        "threads": a.threads,
        "kv": a.kv,
        "fa": a.fa,
        "ubatch": a.ubatch,
    }

    def out(name, value, unit, xs=(), f=None, **kw):
        print(
            json.dumps(
                {
                    "name": name,
                    "value": round(value, 3),
                    "unit": unit,
                    "min": round(min(xs, default=value), 3),
                    "max": round(max(xs, default=value), 3),
                    "reps": max(1, len(xs)),
                    "foreign_pct": None if f is None else round(f, 1),
                    "settings": {**base, **kw},
                }
            ),
            flush=True,
        )

    L.llama_backend_init()
    c0 = cpu()
    model = L.llama_model_load_from_file(a.model.encode(), L.llama_model_default_params())
    c1 = cpu()
    assert model, "the model did not load"
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    batch = L.llama_batch_init(2048, 0, 1)

    def make(n_ctx, n_seq):
        p = L.llama_context_default_params()
        p.n_ctx = n_ctx
        p.n_batch = 2048
        p.n_ubatch = a.ubatch
        p.n_seq_max = n_seq
        p.n_threads = p.n_threads_batch = a.threads
        p.type_k = p.type_v = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}[a.kv]
        p.flash_attn_type = {"auto": -1, "0": 0, "1": 1}[a.fa]
        p.kv_unified = False
        p.no_perf = True
        ctx = L.llama_init_from_model(model, p)
        assert ctx, "no context"
        return ctx, L.llama_get_memory(ctx)

    def put(ctx, rows):  # rows: (token, position, sequence, wants logits)
        for i, (t, pos, seq, lg) in enumerate(rows):
            batch.token[i] = int(t)
            batch.pos[i] = pos
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = seq
            batch.logits[i] = lg
        batch.n_tokens = len(rows)
        assert L.llama_decode(ctx, batch) == 0
        return [
            int(np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, i), (vocab,)).argmax())
            for i, r in enumerate(rows)
            if r[3]
        ]

    def prefill(ctx, start, n, seq=0):
        ids = rng.integers(100, vocab - 1000, n)
        t = time.perf_counter()
        for i in range(0, n, 2048):
            tok = put(
                ctx, [(ids[j], start + j, seq, j == n - 1) for j in range(i, min(n, i + 2048))]
            )
        return time.perf_counter() - t, tok

    def steps(ctx, toks, pos, n):
        xs = []
        for k in range(n):
            t = time.perf_counter()
            toks = put(ctx, [(x, pos + k, s, 1) for s, x in enumerate(toks)])
            xs.append(time.perf_counter() - t)
        return xs

    if {"load", "prefill", "decode", "prefix"} & set(want):
        ctx, m = make((max(a.ctx + a.prompts + [a.prefix]) + 16 + a.steps + 255) // 256 * 256, 1)
        prefill(ctx, 0, 64)
        L.llama_memory_clear(m, True)
        if "load" in want:
            out(
                "load_s",
                c1[0] - c0[0],
                "s",
                f=foreign(c0, c1),
                system=L.llama_print_system_info().decode().strip(),
            )
            out("rss_after_first_decode", mem("VmRSS"), "MiB")
            out("rss_anon_after_first_decode", mem("RssAnon"), "MiB")

        def fresh(n):
            L.llama_memory_clear(m, False)
            return prefill(ctx, 0, n)

        if "prefill" in want:
            for n in a.prompts:
                c0 = cpu()
                xs = [n / fresh(n)[0] for _ in range(a.reps if n <= 512 else min(a.reps, 3))]
                out(f"prefill_{n}", st.median(xs), "tok/s", xs, foreign(c0, cpu()))
        if "decode" in want:
            for n in a.ctx:
                _, tok = fresh(n)
                c0 = cpu()
                xs = [1 / t for t in steps(ctx, tok, n, a.steps)]
                out(f"decode_ctx{n}", st.median(xs), "tok/s", xs, foreign(c0, cpu()))
        if "prefix" in want:
            cold, warm = [], []
            c0 = cpu()
            for _ in range(3):
                cold.append(1000 * fresh(a.prefix + 16)[0])
                for _ in range(3):
                    L.llama_memory_seq_rm(m, 0, a.prefix, -1)
                    warm.append(1000 * prefill(ctx, a.prefix, 16)[0])
            f = foreign(c0, cpu())
            out(f"ttft_uncached_{a.prefix}+16", st.median(cold), "ms", cold, f)
            out(f"ttft_cached_{a.prefix}+16", st.median(warm), "ms", warm, f)
        if "load" in want:
            out("rss_peak", mem("VmHWM"), "MiB")
        L.llama_free(ctx)
    if "batch" in want:
        for n in a.bctx:
            ctx, m = make((n + a.steps + 256) // 256 * 256 * a.streams, a.streams)
            _, tok = prefill(ctx, 0, n)
            for s in range(1, a.streams):
                L.llama_memory_seq_cp(m, 0, s, -1, -1)
            c0 = cpu()
            xs = [a.streams / t for t in steps(ctx, tok * a.streams, n, a.steps)]
            out(f"batch{a.streams}_ctx{n}", st.median(xs), "tok/s", xs, foreign(c0, cpu()))
            L.llama_free(ctx)
        if "load" in want:
            out("rss_peak_batch", mem("VmHWM"), "MiB")


main()
