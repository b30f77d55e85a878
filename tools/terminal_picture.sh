#!/bin/sh
# Draws doc/terminal.svg anew, with the built program and the small model of the demo.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$PWD/build/release/systole" "$work/systole"
ln -s "$(sh tools/fetch_model.sh smollm2)" "$work/model.gguf"
out=$PWD/doc/terminal.svg draw=$PWD/tools/terminal_svg.py
cd "$work"
PATH="$work:$PATH" python3 "$draw" --title 'systole run, systole inspect' -o "$out" \
    "systole run -m model.gguf 'In which city is the Eiffel Tower?'" 'systole inspect -m model.gguf --max-seqs 4'
