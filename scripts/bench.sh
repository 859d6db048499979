#!/usr/bin/env bash
# The tables of the README.
#
#   scripts/bench.sh engine [--json] [--no-peer]   Quire beside llama.cpp: SmolLM2, Qwen3-0.6B's shape
#   scripts/bench.sh kernels [--json]              kernel benches, with this machine's peaks beside them
#
# llama.cpp (PyPI: llama-cpp-python) is built once into ${QUIRE_HOME:-~/.cache/quire}/bench, which takes
# about 15 minutes on two cores. The Qwen3-0.6B-shaped model has random weights and is written there.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-engine}
[ $# -eq 0 ] || shift
json=()
peer=1
for argument in "$@"; do
  case "$argument" in
    --json) json=(--json) ;;
    --no-peer) peer=0 ;;
    *) echo "bench.sh: unknown argument '$argument' (known: --json, --no-peer)" >&2; exit 2 ;;
  esac
done
home=${QUIRE_HOME:-$HOME/.cache/quire}/bench
mkdir -p "$home"

scripts/setup.sh >&2
cmake --preset release >/dev/null

prepare_peer() {
  if [ ! -x "$home/peer/bin/python" ] || ! "$home/peer/bin/python" -c 'import llama_cpp' 2>/dev/null; then
    echo 'building llama.cpp (about 15 minutes)' >&2
    python3 -m venv "$home/peer"
    CMAKE_ARGS='-DGGML_NATIVE=ON' "$home/peer/bin/pip" install -q numpy llama-cpp-python==0.3.36 >&2
  fi
}

prepare_models() {
  local python=python3
  [ $peer -eq 1 ] && python="$home/peer/bin/python"
  if [ ! -f "$home/qwen3-0.6b-random-q8_0.gguf" ]; then
    echo 'writing a Qwen3-0.6B-shaped model' >&2
    xz -dc tests/data/tokenizer_qwen3/tokenizer.json.xz >"$home/tokenizer.json"
    "$python" scripts/bench/make_gguf.py "$home" --tokenizer "$home/tokenizer.json" --types bf16,q8_0 >&2
  fi
}

case "$what" in
  engine)
    cmake --build --preset release --target quire >&2
    [ $peer -eq 0 ] || prepare_peer
    prepare_models
    flags=("${json[@]}" --quire build/release/bin/quire)
    [ $peer -eq 0 ] || flags+=(--peer-python "$home/peer/bin/python")
    for model in "$home/qwen3-0.6b-random-bf16.gguf" "$home/qwen3-0.6b-random-q8_0.gguf" \
      "$(scripts/fetch_model.sh smollm2-135m | tail -n 1)"; do
      python3 scripts/bench/engine.py "${flags[@]}" --model "$model"
      [ ${#json[@]} -gt 0 ] || echo
    done
    ;;
  kernels)
    cmake --build --preset release --target gemm_bench paged_attention_bench >&2
    format=console
    [ ${#json[@]} -eq 0 ] || format=json
    build/release/bench/gemm_bench --benchmark_format=$format
    build/release/bench/paged_attention_bench --benchmark_format=$format
    ;;
  *)
    echo "bench.sh: unknown bench '$what' (known: engine, kernels)" >&2
    exit 2
    ;;
esac
