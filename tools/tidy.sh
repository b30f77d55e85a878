#!/bin/sh
# The style gate: format, line, function and file lengths, folder layers, banned calls, leftovers, mutable globals.
# usage: tidy.sh [--fix]        --fix formats the sources first. Prints what is wrong, then "N passed, N failed, 0 skipped".
set -u
cd "$(dirname "$0")/.." || exit
mkdir -p build
sum=build/tidy.sum
: > $sum
check() { # check NAME: standard input holds the findings
    found=$(cat)
    if [ -z "$found" ]; then
        echo 'ok' >> $sum
    else
        echo 'failed' >> $sum
        echo "== $1"
        echo "$found" | head -40
    fi
}
tracked=$(git ls-files 2> /dev/null) || tracked=$(find src include test tools .ci -type f)
c_files=$(echo "$tracked" | grep -E '^(src|include|test)/.*\.[ch]$' | while read -r f; do [ ! -f "$f" ] || echo "$f"; done)
src_files=$(echo "$c_files" | grep -E '^(src|include)/')
scripts=$(echo "$tracked" | grep -E '^(tools/.*\.sh|test/.*\.sh|\.ci/run)$')

if command -v clang-format > /dev/null; then
    [ "${1:-}" != --fix ] || echo "$c_files" | xargs clang-format -i
    echo "$c_files" | xargs clang-format --dry-run -Werror 2>&1 | grep -E 'error:' | check 'format (tools/tidy.sh --fix mends it)'
fi
if command -v shellcheck > /dev/null; then
    echo "$scripts" | xargs shellcheck -S warning -f gcc | check 'shell scripts'
fi

echo "$c_files" | xargs awk 'length($0) > 118 {print FILENAME ":" FNR ": " length($0) " columns, 118 at most"}' | check 'line length'
echo "$c_files" | xargs grep -nP '\t| +$' | check 'tabs and trailing blanks'
# A table that a script writes may be longer; it says so in its first line.
for f in $(echo "$tracked" | grep -E '\.(c|h|py|sh)$'); do
    [ -f "$f" ] || continue
    n=$(wc -l < "$f")
    if [ "$n" -gt 1000 ] && ! head -1 "$f" | grep -qi generated; then echo "$f: $n lines, 1000 at most"; fi
done | check 'file length'
# A function's braces stand alone in the first column.
echo "$c_files" | xargs awk '
    FNR == 1 {open = 0}
    /^\{/ {open = FNR}
    /^\}/ {if (open && FNR - open - 1 > 100) print FILENAME ":" open ": " FNR - open - 1 " lines in a function, 100 at most"; open = 0}' |
    check 'function length'

# src/FOLDER may include its own and lower folders; models and backends never see each other.
echo "$src_files" | grep '^src/' | xargs awk '
    BEGIN {
        n = split("base graph quant checkpoint text model comm backend engine serve plan app", order, " ")
        for (i = 1; i <= n; i++) rank[order[i]] = i
        rank["bench"] = rank["serve"]
    }
    match($0, /^#include "[a-z]+\//) {
        split(FILENAME, part, "/"); from = part[2]
        to = substr($0, RSTART + 10, RLENGTH - 11)
        bad = rank[to] > rank[from] || (rank[to] == rank[from] && to != from)
        if (from == "backend" && to == "model") bad = 1
        if (bad) print FILENAME ":" FNR ": " from "/ may not include " to "/"
    }' | check 'folder layers'

# Code without its comments and strings, for the searches below.
code() {
    for f in $1; do
        sed -E 's/"([^"\\]|\\.)*"/""/g; s#//.*##; s#/\*([^*]|\*[^/])*\*/##g; s#/\*.*##; s#^ \*.*##' "$f" | awk -v f="$f" '{print f ":" FNR ":" $0}'
    done
}
code "$src_files" > build/tidy.code
banned() { # banned PATTERN INSTEAD [FILES THAT MAY]
    grep -P "[^A-Za-z0-9_.>]($1)\s*\(" build/tidy.code | grep -vE "^(${3:-none}):" | sed "s|\$|      <- use $2|"
}
{
    banned 'strcpy|strncpy|stpcpy|strcat|strncat' 'snprintf or sy_buf'
    banned 'sprintf|vsprintf' 'snprintf or sy_buf_printf'
    banned 'gets|scanf' 'sy_file_read'
    banned 'strtok|strtok_r|strsep' 'strcspn'
    banned 'atoi|atol|atoll|atof' 'strtoll, strtod and a range check'
    banned 'system|popen' 'a library call'
    banned 'rand|srand|random|drand48|rand_r' 'sy_rng'
    banned 'alloca|malloc|calloc|realloc|aligned_alloc' 'sy_new, sy_resize or an arena' 'src/base/(base|json)\.c'
    banned 'setjmp|longjmp|signal' 'a status; sigaction'
    banned 'assert|abort' 'sy_assert' 'src/base/base\.c'
    banned 'exit|_exit|quick_exit' 'a status' 'src/app/[a-z/]*\.c'
    banned 'time|gettimeofday' 'sy_now_ns' 'src/(app|serve)/[a-z_/]*\.c|src/engine/embed\.c'
} | check 'banned calls'
echo "$tracked" | grep -E '^(src|include|test/(unit|e2e|fuzz)|tools)/' | grep -vE 'corpus|tidy\.sh' |
    xargs grep -nE '\b(TODO|FIXME|XXX|HACK)\b' 2> /dev/null | check 'leftovers'

python3 tools/mutate.py --places | grep 'is gone' | check 'places of mutations'

# Variables that can change outside a function: whatever lies in .data or .bss (constants with pointers are in .data.rel.ro).
if [ -d build/release/src ]; then
    find build/release/src -name '*.o' -exec objdump -t {} + 2> /dev/null | awk '
        /file format/ {file = $1}
        / O \.(data|bss)(\.[A-Za-z0-9_.]+)?\t/ && !/\.data\.rel\.ro/ && $NF !~ /^__compound_literal/ {print file " " $NF}' | check 'mutable file-scope variables'
fi
awk '{n[$1]++} END {printf "%d passed, %d failed, 0 skipped\n", n["ok"], n["failed"]; exit n["failed"] > 0}' $sum
