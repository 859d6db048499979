#!/usr/bin/env bash
# The one-command start: sets up, builds, fetches SmolLM2-135M-Instruct, starts a router and a
# worker, asks a question, streams the answer, stops.
#
#   scripts/demo.sh [QUESTION]
set -euo pipefail
cd "$(dirname "$0")/.."

question=${1:-What is the capital of France? Answer in one sentence.}
say() { printf '\n== %s\n' "$*"; }

say 'packages'
scripts/setup.sh
say 'build'
log=$(mktemp)
cmake --preset release >"$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build --preset release --target quire
say 'model'
model=$(scripts/fetch_model.sh smollm2-135m | tail -n 1)
echo "$model"

say 'start'
quire=build/release/bin/quire
"$quire" up --model "$model" --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 \
  --metrics-listen 127.0.0.1:0 >"$log" 2>&1 &
server=$!
trap 'kill -TERM $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 600); do
  grep -q '^ready' "$log" && break
  kill -0 $server 2>/dev/null || { cat "$log"; echo 'demo.sh: quire up ended' >&2; exit 1; }
  sleep 0.1
done
grep '^ready' "$log" || { cat "$log"; echo 'demo.sh: not ready after 60 s' >&2; exit 1; }
target=$(sed -n 's/^ready.*grpc=\([^ ]*\).*/\1/p' "$log")

say "question: $question"
"$quire" chat --target "$target" --temperature 0 --message "$question"
say 'stop'
kill -TERM $server
wait $server
trap 'rm -f "$log"' EXIT
echo 'done'
