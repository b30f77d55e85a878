#!/bin/sh
# Runs test programs, two at a time, and adds up what they report. usage: check.sh LOG_FOLDER PROGRAM...
# cmocka programs report "[  PASSED  ] n test(s)."; end-to-end scripts "name: n passed, n failed, n skipped".
# Ends with one line "N passed, N failed, N skipped"; the exit status says whether any failed.
# TEST_SECONDS bounds each program (default 300), TEST_JOBS how many run at once, TEST_WRAPPER is put before each.
set -u

if [ "$1" = --one ]; then
    log=$2/$(basename "$3").log
    start=$(date +%s)
    # shellcheck disable=SC2086
    timeout -k 5 "${TEST_SECONDS:-300}" ${TEST_WRAPPER:-} "$3" > "$log" 2>&1 < /dev/null
    code=$?
    took=$(($(date +%s) - start))
    total() { grep -aoE "$1" "$log" | grep -oE '[0-9]+' | awk '{n += $1} END {print n + 0}'; }
    passed=$(total '^\[  PASSED  \] [0-9]+|[0-9]+ passed,')
    failed=$(total '^\[  FAILED  \] [0-9]+|[0-9]+ failed,')
    skipped=$(total '^\[  SKIPPED \] [0-9]+|, [0-9]+ skipped$')
    # A program that died says nothing, and one that checked nothing proves nothing.
    if [ "$code" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
    if [ "$passed" -eq 0 ] && [ "$failed" -eq 0 ] && [ "$skipped" -eq 0 ]; then failed=1; fi
    echo "$passed $failed $skipped" > "$log.sum"
    if [ "$failed" -eq 0 ]; then
        printf '  ok      %-44s %4d passed%s  %d s\n' "$3" "$passed" "$([ "$skipped" -eq 0 ] || echo ", $skipped skipped")" "$took"
        grep -a '^skipped' "$log" | sed 's/^/          /'
    else
        printf '  FAILED  %-44s exit %d, %d s; %s:\n' "$3" "$code" "$took" "$log"
        { grep -aE 'FAILED|: runtime|SUMMARY' "$log" | head -20; grep -aE 'ERROR|error|systole: ' "$log" | head -10; } |
            sed 's/^/          /'
    fi
    exit 0
fi

logs=$1
shift
mkdir -p "$logs"
rm -f "$logs"/*.sum
printf '%s\n' "$@" | xargs -P "${TEST_JOBS:-2}" -I '{}' "$0" --one "$logs" '{}'
cat "$logs"/*.sum | awk '{p += $1; f += $2; s += $3} END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0}'
