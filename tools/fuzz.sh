#!/bin/sh
# Runs fuzz targets (libFuzzer) for FUZZ_SECONDS each, two at a time, from their corpora.
# usage: fuzz.sh PROGRAM...        Ends with "N passed, N failed, 0 skipped"; what crashed one lies in build/fuzz/crash/.
set -u
if [ "$1" = --one ]; then
    name=$(basename "$2")
    crash=build/fuzz/crash/$name-
    mkdir -p build/fuzz/crash "build/fuzz/found/$name"
    if "$2" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$crash" -print_final_stats=1 \
        "build/fuzz/found/$name" "test/fuzz/corpus/$name" > "build/fuzz/$name.log" 2>&1; then
        echo 1 > "build/fuzz/$name.sum"
        printf '  ok      %-20s %s runs\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log")"
    else
        echo 0 > "build/fuzz/$name.sum"
        printf '  FAILED  %-20s build/fuzz/%s.log\n' "$name" "$name"
        grep -E 'ERROR|SUMMARY|Test unit written|runtime error' "build/fuzz/$name.log" | head -5 | sed 's/^/          /'
    fi
    exit 0
fi
rm -f build/fuzz/*.sum
printf '%s\n' "$@" | xargs -P 2 -I '{}' "$0" --one '{}'
cat build/fuzz/*.sum | awk '{p += $1; f += !$1} END {printf "%d passed, %d failed, 0 skipped\n", p, f; exit f > 0}'
