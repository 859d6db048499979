#!/usr/bin/env python3
"""The engine table: Quire and llama.cpp on one model, in turn, medians over rounds.

usage: engine.py --quire BIN --model FILE.gguf [--peer-python PYTHON] [--rounds 3] [--json] [-- flags of quire-worker]

A round runs ours, then the peer's, for the same figures; a figure is the median over rounds, with the
range. Rounds in turn share the machine's good and bad minutes. Without --peer-python only ours is run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

FIGURES = [  # our name, settings that matter, the peer's name
    ("prefill_tok_s", {"prompt_tokens": 512}, "prefill_512"),
    ("prefill_tok_s", {"prompt_tokens": 2048}, "prefill_2048"),
    ("decode_tok_s", {"context": 128, "streams": 1}, "decode_ctx128"),
    ("decode_tok_s", {"context": 1024, "streams": 1}, "decode_ctx1024"),
    ("decode_tok_s", {"context": 128, "streams": 16}, "batch16_ctx128"),
]


def run(command, what):
    print(f"  {what} ...", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"engine.py: {what} failed: {' '.join(command)}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def ours(args):
    common = [args.quire, "bench", "engine", "--model", args.model, "--json", "--repeat", "1"]
    common += ["--max-model-len", "4096"] + args.worker_flags
    lines = run(common + ["--prompt-tokens", "512,2048", "--context", "128,1024", "--streams", "1",
                          "--gen-tokens", "32", "--cached"], "quire, one stream")
    lines += run(common + ["--prompt-tokens", "64", "--context", "128", "--streams", "16",
                           "--gen-tokens", "24"], "quire, 16 streams")
    return lines


def peer(args):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_llamacpp.py")
    return run([args.peer_python, script, args.model, "--threads", str(os.cpu_count()),
                "--figures", "prefill,decode,batch,prefix", "--ctx", "128,1024", "--bctx", "128",
                "--reps", "1", "--steps", "24"], "llama.cpp")


def pick(lines, name, settings):
    for line in lines:
        if line["name"] == name and all(line["settings"].get(k) == v for k, v in settings.items()):
            if "prefix" in settings or "prefix" not in line["settings"]:
                return line["value"]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quire", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer-python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("worker_flags", nargs="*")
    args = parser.parse_args()

    rounds = []
    for i in range(args.rounds):
        print(f"round {i + 1} of {args.rounds}", file=sys.stderr)
        rounds.append((ours(args), peer(args) if args.peer_python else []))

    settings = rounds[0][0][0]["settings"]
    rows = []
    for name, keys, peer_name in FIGURES:
        mine = [pick(o, name, keys) for o, _ in rounds]
        theirs = [v for _, p in rounds for v in [pick(p, peer_name, {})] if v is not None]
        rows.append((name, keys, mine, theirs, True))
    cold = [pick(o, "ttft_ms", {"prompt_tokens": 2048}) for o, _ in rounds]
    warm = [pick(o, "ttft_ms", {"prompt_tokens": 2048, "prefix": "cached"}) for o, _ in rounds]
    warm_peer = [v for _, p in rounds for v in [pick(p, "ttft_cached_2048+16", {})] if v is not None]
    rows.append(("ttft_ms", {"prompt_tokens": 2048}, cold, [], False))
    rows.append(("ttft_ms", {"prompt_tokens": 2048, "prefix": "cached"}, warm, warm_peer, False))

    if args.json:
        base = {k: settings[k] for k in ("model", "weights", "kv", "threads", "isa")}
        for name, keys, mine, theirs, _ in rows:
            unit = "ms" if name.endswith("ms") else "tokens/s"
            for values, extra in ((mine, {}), (theirs, {"peer": "llama.cpp"})):
                if values:
                    print(json.dumps({"name": name, "value": statistics.median(values), "unit": unit,
                                      "settings": {**base, **keys, **extra}}))
        return
    print(f"{settings['model']}, weights {settings['weights']}, KV {settings['kv']}, "
          f"{settings['threads']} threads, {settings['isa']}; median (range) of {args.rounds} rounds in turn\n")
    print("| | Quire | llama.cpp | ratio |\n|---|---|---|---|")
    for name, keys, mine, theirs, higher_is_better in rows:
        what = name + " " + ", ".join(f"{k} {v}" for k, v in keys.items())
        text = lambda v: f"{statistics.median(v):.1f} ({min(v):.1f} to {max(v):.1f})" if v else "-"
        ratio = "-"
        if theirs:
            r = statistics.median(mine) / statistics.median(theirs)
            ratio = f"{r if higher_is_better else 1 / r:.2f} x"
        print(f"| {what} | {text(mine)} | {text(theirs)} | {ratio} |")


main()
