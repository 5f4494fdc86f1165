#!/bin/sh
# Runs test binaries one after another and adds up their cmocka results. Shell tests (tests/*.t.sh) print
# the same `[       OK ]` / `[  FAILED  ]` / `[  SKIPPED ]` lines. A crash counts as a failure.
set -u
bin_only=0
[ "${1:-}" = "--bin-only" ] && { bin_only=1; shift; }
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0
# a deadlock must not hang the suite
limit=""; command -v timeout >/dev/null 2>&1 && limit="timeout -k 5 1800"
run() { # name command...
    name=$1; shift
    start=$(date +%s)
    $limit "$@" >"$log" 2>&1
    rc=$?
    p=$(grep -c '^\[       OK \]' "$log")
    bad=$(sed -n 's/^\[  FAILED  \] \([^:]*\)$/\1/p' "$log" | sort -u | grep -cv 'test(s)' || true)
    s=$(sed -n 's/^\[  SKIPPED \] \([^:]*\)$/\1/p' "$log" | sort -u | grep -cv 'test(s)' || true)
    [ "$s" -eq 0 ] && s=$(grep '^SKIP: ' "$log" | sort -u | wc -l) # a whole binary
    [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
    passed=$((passed + p)) failed=$((failed + bad)) skipped=$((skipped + s))
    mark="ok  "; [ "$bad" -gt 0 ] && mark="FAIL"
    printf '%s %-34s %3d passed %2d failed %2d skipped  %3ds\n' "$mark" "$name" "$p" "$bad" "$s" $(($(date +%s) - start))
    if [ "$bad" -gt 0 ]; then grep -vE '^\[ (RUN     |      OK) ' "$log" | tail -60; echo "(exit status $rc)"; fi
    sed -n 's/^SKIP: /     skipped: /p' "$log" | sort -u
}
for b in "$@"; do
    case $b in
    */sim/*) run "${b##*/}, simulated" "$b" ;;
    */sim-log/*) run "${b##*/}, simulated, checked" "$b" ;;
    */cuda-test/*) run "${b##*/}, device" "$b" ;;
    *) run "${b##*/}" "$b" ;;
    esac
done
if [ "$bin_only" = 0 ]; then
    for t in tests/*.t.sh tests/*/*.t.sh; do [ -f "$t" ] && run "${t##*/}" sh "$t"; done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
