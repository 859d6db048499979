#!/usr/bin/env bash
# The one-command test: sets up, builds and runs every test.
#
#   scripts/test.sh            everything that a change must pass (about 15 minutes from nothing)
#   scripts/test.sh --full     also the long tests, and the whole suite under ASan+UBSan and TSan
#   scripts/test.sh --rerun    runs the tests even if nothing changed since they last passed
set -euo pipefail
cd "$(dirname "$0")/.."

full=0
rerun=0
for argument in "$@"; do
  case "$argument" in
    --full) full=1 ;;
    --rerun) rerun=1 ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: unknown argument '$argument' (known: --full, --rerun)" >&2; exit 2 ;;
  esac
done
[ -z "${CI:-}" ] || rerun=1

say() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

say 'packages'
scripts/setup.sh
say 'model'
model=$(scripts/fetch_model.sh smollm2-135m | tail -n 1)
export QUIRE_TEST_SMOLLM2="$model"
echo "$model"

# What the tests depend on: every file of the tree that git does not ignore, and the mode.
tree_digest() {
  { echo "full=$full"; git ls-files -co --exclude-standard -z | sort -z | xargs -0 sha256sum; } 2>/dev/null |
    sha256sum | cut -d' ' -f1
}

# build_and_test PRESET [ctest arguments]
build_and_test() {
  local preset=$1 stamp="build/$1/tests_passed" digest
  shift
  say "build ($preset)"
  cmake --preset "$preset" >"build-$preset.log" 2>&1 || { cat "build-$preset.log"; exit 1; }
  rm -f "build-$preset.log"
  cmake --build --preset "$preset"
  digest=$(tree_digest)
  if [ $rerun -eq 0 ] && [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$digest" ]; then
    say "tests ($preset): nothing changed since they passed; --rerun runs them again"
    tail -n +2 "$stamp"
    return
  fi
  say "tests ($preset)"
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" "$@" |
    tee "build/$preset/tests.log"
  { echo "$digest"; grep -E 'tests passed|Total Test time' "build/$preset/tests.log"; } >"$stamp"
}

if [ $full -eq 1 ]; then
  build_and_test asan -LE full
  build_and_test tsan -LE full
  build_and_test release
else
  build_and_test release -LE full
fi
say 'done'
