# What the shell tests share (sourced): a scratch folder, checks that print cmocka's lines, the golden folder.
# Run from the root of the source tree; BUILD and GOLDEN come from tests/run.sh.
: "${BUILD:=build}" "${GOLDEN:=../shared/golden}"
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failures=0

pass() { echo "[       OK ] $1"; }
skip() { echo "[  SKIPPED ] $1"; }
fail() { # name, why
    echo "$1: $2"
    echo "[  FAILED  ] $1"
    failures=1
}

# check NAME STATUS PATTERN COMMAND...: the command must end with STATUS, and a line of what it printed on either
# stream must match the extended PATTERN ('' for none). Its streams stay in $tmp/out and $tmp/err.
check() {
    name=$1 want=$2 pattern=$3
    shift 3
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    if [ "$got" -ne "$want" ]; then
        fail "$name" "expected exit status $want, found $got: $(head -c 400 "$tmp/err")"
    elif [ -n "$pattern" ] && ! grep -qE -e "$pattern" "$tmp/out" "$tmp/err"; then
        fail "$name" "expected /$pattern/, found: $(head -c 400 "$tmp/out" "$tmp/err")"
    else
        pass "$name"
    fi
}

# same NAME EXPECTED FOUND
same() {
    if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "expected '$2', found '$3'"; fi
}

# holds NAME COMMAND...: the command must succeed.
holds() {
    name=$1
    shift
    if "$@" >"$tmp/holds" 2>&1; then pass "$name"; else fail "$name" "$(tail -c 600 "$tmp/holds")"; fi
}

# Value of a path in the JSON on $tmp/out: json stats rounds
json() {
    python3 -c 'import json, sys
v = json.load(open(sys.argv[1]))
for key in sys.argv[2:]:
    v = v[int(key)] if isinstance(v, list) else v[key]
print(json.dumps(v) if isinstance(v, (dict, list, bool)) or v is None else v)' "$tmp/out" "$@" 2>/dev/null
}

# True when the tiny golden models are there; without them a failure where CI=true, else one skipped test.
have_golden() { # name
    [ -f "$GOLDEN/dflash/target-qwen3/model.safetensors" ] && return 0
    if [ "${CI:-}" = true ]; then
        fail "$1" "the golden folder $GOLDEN has no dflash/target-qwen3"
    else
        echo "SKIP: $GOLDEN/dflash/target-qwen3 is missing"
        skip "$1"
    fi
    return 1
}
