#!/usr/bin/env bash
# Installs what building, running and testing Quire need on Debian 12. Quick when nothing is missing.
set -euo pipefail

packages=(
  ca-certificates git g++ cmake ninja-build ccache pkg-config python3 python3-pip curl unzip
  libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev libabsl-dev
  libssl-dev libspdlog-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libpcre2-dev
  libxxhash-dev libutf8proc-dev libsimdjson-dev liblzma-dev libedit-dev libsimde-dev libhiredis-dev
  prometheus-cpp-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  redis-server python3-grpcio python3-protobuf
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
    missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: everything is installed"
  exit 0
fi
echo "setup: installing ${missing[*]}"
sudo=''
[ "$(id -u)" -eq 0 ] || sudo='sudo'
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "setup: done"
