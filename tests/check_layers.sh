#!/bin/sh
# The structure check: include arrows, file length, function length.
set -u
cd "$(dirname "$0")/.." || exit 1
bad=0
arrow() { # folder, pattern of forbidden includes, why
    out=$(grep -nE "^#include \"($2)/" "$1"/*.c "$1"/*.h "$1"/*/*.c "$1"/*/*.h 2>/dev/null)
    if [ -n "$out" ]; then echo "$3:"; echo "$out"; bad=1; fi
}
arrow kernels 'runtime|dflash|graft|tests|bench' 'kernels/ includes only kernels/'
arrow runtime 'dflash|graft|tests|bench' 'runtime/ knows no particular drafter'
arrow dflash 'graft|tests|bench' 'dflash/ and graft/ meet in the tree, not in includes'
arrow graft 'dflash|tests|bench' 'graft/ and dflash/ meet in the tree, not in includes'
for f in runtime/cli*.[ch] runtime/main.c; do
    [ -f "$f" ] || continue
    out=$(grep -nE '^#include "' "$f" | grep -vE '"runtime/(dgraft|cli|convert)\.h"|"kernels/(quant|tensor)\.h"')
    if [ -n "$out" ]; then echo "the program uses the public header only: $f"; echo "$out"; bad=1; fi
done
for f in $(find kernels runtime dflash graft tests bench -name '*.[ch]' -o -name '*.py' -o -name '*.cu'); do
    n=$(wc -l <"$f")
    if [ "$n" -gt 700 ]; then echo "$f has $n lines; at most 700"; bad=1; fi
done
# functions: from a line that opens one in column 0 to the closing brace in column 0
for f in $(find kernels runtime dflash graft -name '*.c'); do
    case "$f" in kernels/cpu/*) limit=160 ;; *) limit=80 ;; esac
    awk -v f="$f" -v limit="$limit" '
        /^[A-Za-z_].*\) *\{$/ || /^ .*\) \{$/ && prev ~ /^[A-Za-z_].*[,(]$/ { if (!start) { start = NR; name = $0 } }
        /^}/ { if (start && NR - start > limit) { print f ":" start ": " NR - start " lines (at most " limit ")"; bad = 1 } start = 0 }
        { prev = $0 }
        END { exit bad }' "$f" || bad=1
done
[ "$bad" = 0 ] && echo "layers: fine"
exit $bad
