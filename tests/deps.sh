#!/bin/sh
# Installs the build's libraries with apt where that is possible; otherwise prints the line to run, and fails unless the
# build can do without.
set -u
need="" want=""
command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || need="$need gcc"
command -v pkg-config >/dev/null 2>&1 || need="$need pkg-config"
has() { command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$1" 2>/dev/null; }
has jansson || need="$need libjansson-dev"
has libpcre2-8 || need="$need libpcre2-dev"
has libutf8proc || need="$need libutf8proc-dev"
has libedit || want=" libedit-dev"
has cmocka || need="$need libcmocka-dev"
command -v python3 >/dev/null 2>&1 || need="$need python3"
python3 -m pip --version >/dev/null 2>&1 || need="$need python3-pip"
all=$need$want
[ -z "$all" ] && exit 0

line="apt-get install -y --no-install-recommends$all"
give_up() {
    echo "$1" >&2
    [ -z "$need" ]
    exit
}
if ! command -v apt-get >/dev/null 2>&1; then
    give_up "dgraft needs the packages that Debian calls:$all"
fi
if [ "$(id -u)" = 0 ]; then
    run=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    run="sudo -n"
else
    give_up "missing packages; run: sudo $line"
fi
echo "installing:$all" >&2
$run env DEBIAN_FRONTEND=noninteractive $line >/dev/null 2>&1 && exit 0
$run apt-get update >/dev/null 2>&1
if ! $run env DEBIAN_FRONTEND=noninteractive $line >&2; then
    give_up "could not install them; run: $line"
fi
