#!/bin/sh
# Ours against llama.cpp's programs on the same files and cores: runs take turns, medians are compared, and rows for
# doc/benchmarks.md are printed. Everything comes in variables; nothing is fetched or built.
#
#   MODEL=model.gguf LLAMA_BENCH=.../llama-bench tools/bench_peers.sh offline
#   MODEL=model.gguf LLAMA_SERVER=.../llama-server tools/bench_peers.sh serve
#   MODEL=model.gguf LLAMA_SERVER=.../llama-server tools/bench_peers.sh gap
#
# offline: prefill and decode by batch (batches above 1 need LLAMA_BATCHED_BENCH=.../llama-batched-bench).
# serve:   output tokens/s and TTFT by concurrency, through HTTP, with the same client.
# gap:     four streams while a long prompt arrives every second: the worst gap between their tokens.
# SYSTOLE (build/release/systole), PEER_MODEL (MODEL), THREADS (2), RUNS (5), CPUS ("0 1", where peers are pinned),
# INPUT (512; serve 128), OUTPUT (64; serve 128), BATCH ("1 8 64"),
# BATCH_INPUT (128: prompts of batches above 1), CONCURRENCY ("1 4 16 64"), REQUESTS (of each user; 10),
# PORT (18080, and the next), OURS, PEER: further flags of the two servers, RAW: a folder that keeps each run's figures.
set -eu
mode=${1:-offline}
ours=${SYSTOLE:-build/release/systole}
model=${MODEL:?set MODEL to a GGUF file}
peer_model=${PEER_MODEL:-$model}
threads=${THREADS:-2}
runs=${RUNS:-5}
port=${PORT:-18080}
GOMP_CPU_AFFINITY=${CPUS:-0 1}
export GOMP_CPU_AFFINITY
tmp=$(mktemp -d)
raw=${RAW:-$tmp}
mkdir -p "$raw"
servers=
cleanup() {
    for pid in $servers; do kill "$pid" 2> /dev/null || true; done
    wait 2> /dev/null || true
    rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

note() { echo "$(basename "$0"): $*" >&2; }

# row NAME FILE_OURS FILE_PEER BETTER: medians of the numbers in two files; BETTER: more or less.
row() {
    python3 - "$@" << 'END'
import statistics, sys
name, ours, peer, better = sys.argv[1:5]
def median(path):
    try:
        v = [float(x) for x in open(path).read().split()]
    except FileNotFoundError:
        v = []
    return statistics.median(v) if v else None
a, b = median(ours), median(peer)
ratio = None if not a or not b else a / b if better == "more" else b / a
show = lambda v, form: "-" if v is None else form % v
print("| %s | %s | %s | %s |" % (name, show(a, "%.4g"), show(b, "%.4g"), show(ratio, "%.2fx")))
END
}

# field FILE EXPRESSION: an expression over `doc`, the JSON of a file
field() { python3 -c 'import json, sys; doc = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2"; }

head_of() {
    echo "| $1 | ours | llama.cpp | ratio |"
    echo "|---|---|---|---|"
}

offline() {
    bench=${LLAMA_BENCH:?set LLAMA_BENCH to llama-bench}
    input=${INPUT:-512} output=${OUTPUT:-64} short=${BATCH_INPUT:-128}
    for run in $(seq "$runs"); do
        note "run $run of $runs"
        "$ours" bench offline -m "$model" -t "$threads" --batch 1 --input-len "$input" --output-len "$output" --repeat 1 \
            --seed "$run" --json "$tmp/o.json" > /dev/null
        field "$tmp/o.json" 'doc["results"][0]["prefill_tok_s"]' >> "$raw/o.prefill"
        field "$tmp/o.json" 'doc["results"][0]["decode_tok_s"]' >> "$raw/o.1"
        field "$tmp/o.json" 'doc["results"][0]["bandwidth_share"]' >> "$raw/o.share"
        "$bench" -m "$peer_model" -t "$threads" -p "$input" -n "$output" -r 1 -o json > "$tmp/p.json" 2> /dev/null
        field "$tmp/p.json" '[r["avg_ts"] for r in doc if r["n_gen"] == 0][0]' >> "$raw/p.prefill"
        field "$tmp/p.json" '[r["avg_ts"] for r in doc if r["n_gen"] > 0][0]' >> "$raw/p.1"
        for batch in ${BATCH:-1 8 64}; do
            [ "$batch" != 1 ] || continue
            "$ours" bench offline -m "$model" -t "$threads" --batch "$batch" --input-len "$short" --output-len "$output" \
                --repeat 1 --seed "$run" --json "$tmp/o.json" > /dev/null
            field "$tmp/o.json" 'doc["results"][0]["decode_tok_s"]' >> "$raw/o.$batch"
            [ -n "${LLAMA_BATCHED_BENCH:-}" ] || continue
            # pinned, it ends without a word
            env -u GOMP_CPU_AFFINITY "$LLAMA_BATCHED_BENCH" -m "$peer_model" -t "$threads" -c $((batch * (short + output))) -npp "$short" -ntg "$output" \
                -npl "$batch" --output-format jsonl 2> /dev/null | grep '^{' | tail -1 > "$tmp/p.json"
            field "$tmp/p.json" 'doc["speed_tg"]' >> "$raw/p.$batch"
        done
    done
    head_of "$(basename "$model"), $threads threads, tokens/s"
    row "prefill $input" "$raw/o.prefill" "$raw/p.prefill" more
    for batch in ${BATCH:-1 8 64}; do row "decode, batch $batch" "$raw/o.$batch" "$raw/p.$batch" more; done
    row "decode, batch 1: share of memory bandwidth" "$raw/o.share" /dev/null more
}

# start NAME PORT COMMAND...: a server, and waits until it answers
start() {
    name=$1 at=$2
    shift 2
    "$@" > "$tmp/$name.log" 2>&1 &
    servers="$servers $!"
    for _ in $(seq 600); do
        if curl -fsS -m 1 "http://127.0.0.1:$at/health" > /dev/null 2>&1; then return 0; fi
        kill -0 $! 2> /dev/null || break
        sleep 0.2
    done
    note "$name did not start:"
    tail -5 "$tmp/$name.log" >&2
    exit 1
}

# both SEQUENCES CONTEXT: our server at PORT, llama-server at the next
both() {
    server=${LLAMA_SERVER:?set LLAMA_SERVER to llama-server}
    # shellcheck disable=SC2086 # OURS and PEER are lists of flags
    start ours "$port" "$ours" serve -m "$model" -t "$threads" --port "$port" --max-seqs "$1" --ctx-size "$2" ${OURS:-}
    # shellcheck disable=SC2086
    start peer $((port + 1)) "$server" -m "$peer_model" -t "$threads" --port $((port + 1)) -np "$1" -c $(($1 * $2)) ${PEER:-}
}

# load WHO AT RUN CONCURRENCY INPUT OUTPUT: one run of the client
load() {
    "$ours" bench serve --url "http://127.0.0.1:$2" --concurrency "$4" --warmups "$4" --num-prompts $(($4 * ${REQUESTS:-10})) \
        --input-len "$5" --output-len "$6" --seed "$3" --json "$tmp/load.json" > /dev/null
    field "$tmp/load.json" 'doc["results"][0]["output_throughput"]' >> "$raw/$1.$4.tok"
    field "$tmp/load.json" 'doc["results"][0]["median_ttft"] * 1e3' >> "$raw/$1.$4.ttft50"
    field "$tmp/load.json" 'doc["results"][0]["p99_ttft"] * 1e3' >> "$raw/$1.$4.ttft99"
    field "$tmp/load.json" 'doc["results"][0]["p99_itl"] * 1e3' >> "$raw/$1.$4.itl99"
}

serve() {
    input=${INPUT:-128} output=${OUTPUT:-128} most=1
    for c in ${CONCURRENCY:-1 4 16 64}; do [ "$c" -le "$most" ] || most=$c; done
    both "$most" $((input + output + 32))
    for run in $(seq "$runs"); do
        for c in ${CONCURRENCY:-1 4 16 64}; do
            note "run $run of $runs, concurrency $c"
            load o "$port" "$run" "$c" "$input" "$output"
            load p $((port + 1)) "$run" "$c" "$input" "$output"
        done
    done
    head_of "$(basename "$model") over HTTP, $threads threads, $input in / $output out"
    for c in ${CONCURRENCY:-1 4 16 64}; do
        row "output tokens/s, concurrency $c" "$raw/o.$c.tok" "$raw/p.$c.tok" more
        row "TTFT p50 ms, concurrency $c" "$raw/o.$c.ttft50" "$raw/p.$c.ttft50" less
        row "TTFT p99 ms, concurrency $c" "$raw/o.$c.ttft99" "$raw/p.$c.ttft99" less
        row "ITL p99 ms, concurrency $c" "$raw/o.$c.itl99" "$raw/p.$c.itl99" less
    done
}

# streams WHO AT RUN: four of them, while long prompts arrive
streams() {
    "$ours" bench serve --url "http://127.0.0.1:$2" --rate 1 --input-len "${INPUT:-2000}" --random-range 1 --output-len 1 \
        --num-prompts 600 --warmups 0 --seed "$3" > /dev/null 2>&1 &
    others=$!
    "$ours" bench serve --url "http://127.0.0.1:$2" --concurrency 4 --num-prompts 4 --warmups 0 --input-len 32 \
        --output-len "${OUTPUT:-200}" --random-range 1 --seed "$3" --json "$tmp/load.json" > /dev/null
    kill $others 2> /dev/null || true
    wait $others 2> /dev/null || true
    field "$tmp/load.json" 'doc["results"][0]["p99.9_itl"] * 1e3' >> "$raw/$1.gap"
    field "$tmp/load.json" 'doc["results"][0]["median_ttft"] * 1e3' >> "$raw/$1.ttft"
    field "$tmp/load.json" 'doc["results"][0]["output_throughput"]' >> "$raw/$1.tok"
}

gap() {
    both 8 $((${INPUT:-2000} + ${OUTPUT:-200} + 64))
    for run in $(seq "$runs"); do
        note "run $run of $runs"
        streams o "$port" "$run"
        streams p $((port + 1)) "$run"
    done
    head_of "$(basename "$model"): four streams, a prompt of ${INPUT:-2000} tokens a second"
    row "gap between tokens of a stream, p99.9 ms" "$raw/o.gap" "$raw/p.gap" less
    row "TTFT p50 of the streams, ms" "$raw/o.ttft" "$raw/p.ttft" less
    row "output tokens/s of the streams" "$raw/o.tok" "$raw/p.tok" more
}

case $mode in
offline | serve | gap) "$mode" ;;
*)
    note "expected offline, serve or gap, found '$mode'"
    exit 2
    ;;
esac
