#!/bin/sh
# make install: what lands where, and that the embedding example builds and runs against the installed copy alone, as
# C11 and as C++17, shared and static.
set -u
. tests/e2e/shell.sh

prefix=$tmp/prefix
example=runtime/example/embed.c

if nm -D "$BUILD/dgraft" 2>/dev/null | grep -qE '__(a|t|ub)san'; then
    echo "SKIP: the library is built with sanitizers"
    skip install
    exit 0
fi

# The outer make's flags and job server are not for this one.
make_quietly() { env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make --no-print-directory BUILD="$BUILD" "$@"; }

pc() { PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config "$@" dgraft; }

test_files() {
    holds install_destdir make_quietly DESTDIR="$tmp/stage" PREFIX=/opt/dg install
    for file in bin/dgraft include/dgraft.h lib/libdgraft.a lib/libdgraft.so lib/libdgraft.so.0 \
        lib/pkgconfig/dgraft.pc share/man/man1/dgraft.1; do
        holds "installed_$file" test -s "$tmp/stage/opt/dg/$file"
    done
    holds destdir_is_not_in_pc grep -qx 'prefix=/opt/dg' "$tmp/stage/opt/dg/lib/pkgconfig/dgraft.pc"
    holds uninstall make_quietly DESTDIR="$tmp/stage" PREFIX=/opt/dg uninstall
    same uninstall_leaves_nothing '' "$(find "$tmp/stage" ! -type d)"
    holds install_prefix make_quietly PREFIX="$prefix" install
    [ $failures = 0 ] || exit 1
    version=$("$prefix/bin/dgraft" --version | head -1 | cut -d' ' -f2)
    same version_of_header "$(awk '/#define DG_VERSION_M|#define DG_VERSION_P/ { v = v dot $3; dot = "." } END { print v }' \
        runtime/dgraft.h)" "$version"
    same version_of_pc "$version" "$(pc --modversion)"
    same version_of_manual "dgraft $version" "$(sed -n 's/^\.TH .*"\(dgraft [0-9.]*\)".*/\1/p' runtime/dgraft.1)"
    same soname libdgraft.so.0 "$(objdump -p "$prefix/lib/libdgraft.so" | sed -n 's/.*SONAME *//p')"
    sed -n 's/^[a-z].*[ *]\(dg_[a-z0-9_]*\)(.*/\1/p' runtime/dgraft.h | sort >"$tmp/declared"
    nm -D --defined-only "$prefix/lib/libdgraft.so" | sed 's/.* //' | sort >"$tmp/exported"
    same exports_are_the_header '' "$(diff "$tmp/declared" "$tmp/exported")"
}

# build NAME COMPILER...: compiles the example with the flags that pkg-config gives
build() {
    name=$1
    shift
    holds "$name" "$@" -o "$tmp/$name" $(pc --cflags) $libs
}

test_example() {
    warn="-pedantic -Wall -Wextra -Wno-missing-field-initializers -Werror"
    libs=$(pc --libs)
    build shared_c11 ${CC:-cc} -std=c11 $warn "$example"
    libs="-x none $(pc --libs)"
    command -v "${CXX:-c++}" >/dev/null 2>&1 && build shared_cxx17 ${CXX:-c++} -std=c++17 $warn -x c++ "$example"
    libs=$(pc --static --libs | sed 's/-ldgraft/-l:libdgraft.a/')
    build static_c11 ${CC:-cc} -std=c11 $warn "$example"
    libs="-x none $libs"
    command -v "${CXX:-c++}" >/dev/null 2>&1 && build static_cxx17 ${CXX:-c++} -std=c++17 $warn -x c++ "$example"
    have_golden example_runs || return
    target=$GOLDEN/dflash/target-qwen3
    want=$("$prefix/bin/dgraft" run -m "$target" -p 'the river' -n 64 --draft ngram 2>/dev/null)
    for name in shared_c11 shared_cxx17 static_c11 static_cxx17; do
        [ -x "$tmp/$name" ] || continue
        found=$(LD_LIBRARY_PATH=$prefix/lib "$tmp/$name" "$target" 'the river' ngram 2>"$tmp/err")
        same "runs_$name" "$want" "$found"
        holds "reports_$name" grep -qE '^[0-9.]+ tokens a round$' "$tmp/err"
    done
    if "$tmp/static_c11" "$tmp/none" x 2>"$tmp/err"; then
        fail example_error "expected a failure"
    else
        holds example_error grep -q none "$tmp/err"
    fi
}

test_files
test_example
exit $failures
