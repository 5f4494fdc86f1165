#!/bin/sh
# dgraft beside llama.cpp and ik_llama.cpp on the same file and thread count: their llama-bench and our bench_ops --peer
# take turns, several rounds, and ratios are taken within a round. With --drafter also drafted runs (drafted.py).
set -u
cd "$(dirname "$0")/.." || exit 1

usage() {
    cat <<'EOF'
usage: bench/peers.sh [--llama DIR] [--ik DIR] [options]
  --llama DIR      folder with llama.cpp's llama-bench (and llama-completion, llama-speculative-simple for --drafter)
  --ik DIR         folder with ik_llama.cpp's llama-bench
  -m MODEL         GGUF file                          [models/SmolLM2-135M-Instruct.Q4_1.gguf]
  -t N             threads                            [2]
  --rounds N       rounds                             [5]
  --compute A,B    compute modes of ours, an arm each [default]
  --llama-args S   more arguments for llama.cpp's llama-bench, e.g. "-fa 1"
  --ik-args S      more arguments for ik_llama.cpp's, e.g. "-rtr 1"
  --drafter DIR    a DFlash drafter of that model: drafted runs beside llama.cpp's draft-dflash, instead
  --prompts N      prompts of those runs              [20]
  --predict N      tokens a prompt                    [128]
  --build DIR      our build                          [build]
  --with COMMAND   put before every run, e.g. "taskset -c 0,1"
At least one of --llama and --ik is needed.
EOF
}

fail() { echo "peers.sh: $*" >&2; exit 1; }

model=models/SmolLM2-135M-Instruct.Q4_1.gguf threads=2 rounds=5 compute=default build=build prompts=20 predict=128
llama='' ik='' llama_args='' ik_args='' drafter='' with=''
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --llama | --ik | -m | -t | --rounds | --compute | --llama-args | --ik-args | --drafter | --prompts | --predict | --build | --with)
        [ $# -ge 2 ] || { usage >&2; exit 2; }
        case $1 in
        --llama) llama=$2 ;; --ik) ik=$2 ;; -m) model=$2 ;; -t) threads=$2 ;; --rounds) rounds=$2 ;;
        --compute) compute=$2 ;; --llama-args) llama_args=$2 ;; --ik-args) ik_args=$2 ;; --drafter) drafter=$2 ;;
        --prompts) prompts=$2 ;; --predict) predict=$2 ;; --build) build=$2 ;; --with) with=$2 ;;
        esac
        shift 2 ;;
    *) echo "peers.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
    esac
done

[ -n "$llama$ik" ] || { usage >&2; exit 2; }
[ -r "$model" ] || fail "cannot read the model $model ('make model' fetches the default one)"
needs() { [ -x "$1" ] || fail "$1 is not there: $2"; }
[ -z "$llama" ] || needs "$llama/llama-bench" "--llama wants the folder of a llama.cpp build's programs"
[ -z "$ik" ] || needs "$ik/llama-bench" "--ik wants the folder of an ik_llama.cpp build's programs"

if [ -n "$drafter" ]; then
    command -v python3 >/dev/null || fail "--drafter needs python3"
    [ -n "$llama" ] || fail "--drafter needs --llama"
    needs "$llama/llama-completion" "build llama.cpp's target llama-completion"
    needs "$llama/llama-speculative-simple" "build llama.cpp's target llama-speculative-simple"
    needs "$build/dgraft" "run 'make cli'"
    exec python3 bench/drafted.py --dgraft "$build/dgraft" --llama "$llama" --model "$model" --drafter "$drafter" \
        --threads "$threads" --prompts "$prompts" --predict "$predict" --compute "${compute%%,*}" --before "$with"
fi

needs "$build/bench/bench_ops" "run 'make $build/bench/bench_ops'"
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'echo >&2; [ ! -s "$tmp/all" ] || report; exit 130' INT TERM

# One run of an arm: lines "test milliseconds" on standard output.
# shellcheck disable=SC2086
ours() {
    $with "$build/bench/bench_ops" --peer -m "$model" -t "$threads" --rounds 3 --compute "$1" |
        awk -F, 'NR > 1 { print $1, $2 }'
}
# shellcheck disable=SC2016,SC2086
theirs() { # folder, more arguments
    $with sh -c '
        bench=$1 && shift
        "$bench" "$@" -o json -p 1,2,4,8,16,32,64 -n 64 -r 3 && "$bench" "$@" -o json -p 512 -n 0 -r 1
    ' sh "$1/llama-bench" -m "$model" -t "$threads" $2 2>"$tmp/err" | awk '
        /"n_prompt":/ { gsub(/[^0-9]/, ""); p = $0 }
        /"n_gen":/    { gsub(/[^0-9]/, ""); n = $0 }
        /"avg_ns":/   { gsub(/[^0-9]/, ""); if (p > 0) print "pp" p, $0 / 1e6; else print "tg" n, $0 / 1e6 / n }'
}

# What came of the rounds so far.
report() {
awk -v model="$model" -v threads="$threads" '
function median(list, n,   i, j, v, x) { # sorts list[1..n]; sets lo, hi
    for (i = 1; i <= n; i++) v[i] = list[i]
    for (i = 2; i <= n; i++) { x = v[i]; for (j = i - 1; j > 0 && v[j] > x; j--) v[j + 1] = v[j]; v[j + 1] = x }
    lo = v[1]; hi = v[n]
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}
function times(arm, test,   r, n, list) {
    for (r = 1; r <= rounds; r++) if ((r, arm, test) in ms) list[++n] = ms[r, arm, test]
    return n ? median(list, n) : -1
}
function ratio(ours, test, theirs, their_test,   r, n, list, i, least, t) { # of speeds; theirs "": the better peer
    for (r = 1; r <= rounds; r++) {
        least = 0
        for (i = 1; i <= n_peer; i++) {
            if (theirs != "" && peer[i] != theirs) continue
            t = ms[r, peer[i], their_test]
            if (t > 0 && (!least || t < least)) least = t
        }
        if (least && ms[r, ours, test] > 0) list[++n] = least / ms[r, ours, test]
    }
    return n ? median(list, n) : -1
}
{
    ms[$1, $2, $3] = $4
    if ($1 > rounds) rounds = $1
    if (!seen[$2]++) { if ($2 ~ /^dgraft/) us[++n_us] = $2; else peer[++n_peer] = $2 }
}
END {
    print model ", " threads " threads, " rounds " rounds; milliseconds, median (least..most)"
    n_test = split("tg64 pp1 pp2 pp4 pp8 pp16 pp32 pp64 pp512", test, " ")
    for (t = 1; t <= n_test; t++) {
        print "\n" (test[t] == "tg64" ? "decoding, 1 row" : test[t] == "pp512" ? "prefill of 512" : test[t] == "pp1" ? "prefill of 1" : substr(test[t], 3) " rows")
        for (i = 1; i <= n_peer; i++) show(peer[i], peer[i], test[t])
        for (i = 1; i <= n_us; i++) {
            show(us[i], us[i], test[t])
            all = test[t]
            if (sub(/^pp/, "verify", all) && all !~ /^verify(1|512)$/) show(us[i] " *", us[i], all)
        }
    }
    print "\n*  every row scored, as verifying a draft needs; the peers score the last row alone"
    print "\nin plain steps of the same engine: median (least..most)"
    for (t = 3; t <= n_test - 1; t++) {
        printf "%-8s", substr(test[t], 3) " rows"
        for (i = 1; i <= n_peer; i++) { m = own(peer[i], test[t]); printf "  %s %.2f (%.2f..%.2f)", peer[i], m, lo, hi }
        all = test[t]; sub(/^pp/, "verify", all)
        for (i = 1; i <= n_us; i++) { m = own(us[i], test[t]); printf "  %s %.2f (%.2f..%.2f)", us[i], m, lo, hi }
        for (i = 1; i <= n_us; i++) { m = own(us[i], all); printf "  %s * %.2f (%.2f..%.2f)", us[i], m, lo, hi }
        print ""
    }
}
function own(arm, test,   r, n, list) {
    for (r = 1; r <= rounds; r++) if (ms[r, arm, "tg64"] > 0) list[++n] = ms[r, arm, test] / ms[r, arm, "tg64"]
    return median(list, n)
}
function show(name, arm, test,   i, m, x, like, rows) {
    m = times(arm, test)
    like = test; sub(/^verify/, "pp", like) # what the peers can do of it
    rows = like; sub(/^pp/, "", rows); if (rows == "tg64") rows = 1
    printf "  %-20s %9.2f (%.2f..%.2f)  %.1f tokens/s", name, m, lo, hi, 1000 * rows / m
    if (arm ~ /^dgraft/) {
        for (i = 1; i <= n_peer; i++) { x = ratio(arm, test, peer[i], like); printf "  %s x%.2f (%.2f..%.2f)", peer[i], x, lo, hi }
        if (n_peer > 1) { x = ratio(arm, test, "", like); printf "  better peer x%.2f (%.2f..%.2f)", x, lo, hi }
    }
    print ""
}
' "$tmp/all"
}

set --
for c in $(echo "$compute" | tr , ' '); do set -- "$@" "dgraft-$c"; done
[ -z "$llama" ] || set -- "$@" llama.cpp
[ -z "$ik" ] || set -- "$@" ik_llama.cpp

round=1
while [ "$round" -le "$rounds" ]; do
    for arm; do
        printf '\rround %s of %s: %-20s' "$round" "$rounds" "$arm" >&2
        : >"$tmp/err"
        case $arm in
        dgraft-*) ours "${arm#dgraft-}" ;;
        llama.cpp) theirs "$llama" "$llama_args" ;;
        *) theirs "$ik" "$ik_args" ;;
        esac >"$tmp/one"
        if ! grep -q '^tg64 ' "$tmp/one"; then
            tail -5 "$tmp/err" >&2
            fail "$arm gave no time for decoding"
        fi
        sed "s/^/$round $arm /" "$tmp/one" >>"$tmp/all"
    done
    first=$1 # another arm begins the next round
    shift
    set -- "$@" "$first"
    round=$((round + 1))
done
printf '\r%30s\r' '' >&2

report
