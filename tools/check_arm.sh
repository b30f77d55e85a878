#!/bin/sh
# Builds the library for arm64 with the cross compiler and runs its unit tests under qemu. The libraries it needs are
# Debian's arm64 packages, unpacked into build/arm/sysroot: nothing is installed on this machine.
# usage: check_arm.sh        Ends with "N passed, N failed, N skipped".
set -eu
cd "$(dirname "$0")/.."
sh tools/packages.sh ci
arm=$PWD/build/arm
libs='libjansson4 libjansson-dev libpcre2-8-0 libpcre2-dev libutf8proc2 libutf8proc-dev libcmocka0 libcmocka-dev'
multiarch=usr/lib/aarch64-linux-gnu

if [ ! -f "$arm/sysroot/done" ]; then
    rm -rf "$arm/sysroot" "$arm/apt"
    mkdir -p "$arm/sysroot" "$arm/apt/lists/partial" "$arm/apt/cache/archives/partial" "$arm/apt/debs"
    : > "$arm/apt/status"
    # This machine's sources and proxies, but lists, cache and status of our own.
    apt='-o APT::Architecture=arm64 -o APT::Architectures=arm64'
    apt="$apt -o Dir::State=$arm/apt -o Dir::State::status=$arm/apt/status -o Dir::State::lists=$arm/apt/lists"
    apt="$apt -o Dir::Cache=$arm/apt/cache -o APT::Sandbox::User=root -o Acquire::Languages=none"
    echo "fetching arm64 packages: $libs"
    # shellcheck disable=SC2086
    apt-get $apt -qq update 2> "$arm/apt/log" || { cat "$arm/apt/log"; exit 1; }
    # shellcheck disable=SC2086
    (cd "$arm/apt/debs" && apt-get $apt -qq download $libs)
    for deb in "$arm"/apt/debs/*.deb; do dpkg-deb -x "$deb" "$arm/sysroot"; done
    touch "$arm/sysroot/done"
fi

export PKG_CONFIG_LIBDIR="$arm/sysroot/$multiarch/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$arm/sysroot"
flags="-isystem $arm/sysroot/usr/include"
folders='base graph quant checkpoint text model comm backend engine'
tests=''
for f in test/unit/*.c; do
    name=$(basename "$f" .c)
    [ "$name" != engine_draft ] || continue # draws thousands of samples: minutes under emulation
    case " $folders cpu " in *" ${name%%_*} "*) tests="$tests build/arm/test/unit/$name" ;; esac
done
# shellcheck disable=SC2086
make --no-print-directory -j2 CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar O=build/arm DIRS="$folders" \
    PKGS='jansson libpcre2-8 libutf8proc' CFLAGS="$flags" \
    LDFLAGS="-L$arm/sysroot/$multiarch -Wl,-rpath-link,$arm/sysroot/$multiarch" $tests
# shellcheck disable=SC2086
TEST_WRAPPER="qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$arm/sysroot/$multiarch" TEST_SECONDS=900 GOLDEN_ROTATE=1 \
    tools/check.sh build/arm/log $tests
