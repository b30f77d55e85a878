#!/bin/bash
# Runs the commands that README.md and doc/*.md show: every line of a block marked ```sh, in order, in a scratch folder
# beside a link to the program. A block after the line <!-- not run: why --> is left out. Shown output is not compared;
# what counts is that the commands work as written.
set -u
root=$PWD
program=$(realpath "${SYSTOLE:-build/release/systole}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

# The name that the documents use for the model, where there is a registry to fetch it from.
model=$(sh tools/fetch_model.sh smollm2 2> /dev/null)
have_model=$?
mkdir -p "$work/bin"
ln -s "$program" "$work/bin/systole"

run_block() { # run_block FILE LINE TEXT
    if [[ $3 == *model.gguf* && $have_model -ne 0 ]]; then
        skipped=$((skipped + 1))
        echo "skipped $1:$2: no registry"
        return
    fi
    folder=$work/$((passed + failed + 1))
    mkdir "$folder"
    [ "$have_model" -ne 0 ] || ln -s "$model" "$folder/model.gguf"
    ln -s "$root" "$folder/systole"
    (cd "$folder" && PATH="$work/bin:$PATH" timeout 300 bash -euo pipefail -c "$3") > "$work/log" 2>&1 < /dev/null
    code=$?
    if [ $code -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $1:$2: exit $code"
        tail -5 "$work/log"
    fi
}

for file in README.md CONTRIBUTING.md doc/*.md; do
    [ -f "$file" ] || continue
    number=0 start=0 block='' inside='' run=yes
    while IFS= read -r line || [ -n "$line" ]; do
        number=$((number + 1))
        case $inside$line in
        '<!-- not run:'*) run=no ;;
        '```sh') inside=' ' start=$number block='' ;;
        ' ```')
            inside=''
            if [ $run = yes ]; then run_block "$file" "$start" "$block"; fi
            run=yes
            ;;
        ' '*) block+=$line$'\n' ;;
        esac
    done < "$file"
done
echo "docs.sh: $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
