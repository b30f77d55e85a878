#!/bin/sh
# What has to be installed (Debian's and Ubuntu's names). usage: packages.sh build|check|ci [--install]
# Says which packages are missing and the command that installs them, and fails; with --install it runs that command,
# with sudo when not root.
set -eu
missing=''
pc() { pkg-config --exists "$1" 2> /dev/null || missing="$missing $2"; }
tool() { command -v "$1" > /dev/null 2>&1 || missing="$missing $2"; }

tool "${CC:-gcc}" "$(basename "${CC:-gcc}")"
[ -f /usr/include/stdio.h ] || missing="$missing libc6-dev"
tool make make
tool pkg-config pkg-config
pc jansson libjansson-dev
pc libpcre2-8 libpcre2-dev
pc libutf8proc libutf8proc-dev
pc libcurl libcurl4-openssl-dev
pc libedit libedit-dev
pc libcrypto libssl-dev
pc libmicrohttpd libmicrohttpd-dev
tool python3 python3
case $1 in
build) ;;
check | ci)
    pc cmocka libcmocka-dev
    python3 -m pip --version > /dev/null 2>&1 || missing="$missing python3-pip"
    python3 -c 'import ensurepip' > /dev/null 2>&1 || missing="$missing python3-venv"
    ;;
esac
if [ "$1" = ci ]; then
    tool clang clang
    # The runtime of the fuzzer and of clang's sanitizers: only recommended by Debian's clang, a part of older ones.
    if ! echo 'int LLVMFuzzerTestOneInput(const char *p, long n) { return p[n - 1] & 0; }' |
        clang -x c - -fsanitize=fuzzer,address -o /dev/null 2> /dev/null; then
        runtime=libclang-rt-$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p')-dev
        if apt-cache show "$runtime" > /dev/null 2>&1; then missing="$missing $runtime"; fi
    fi
    tool clang-format clang-format
    tool shellcheck shellcheck
    tool git git
    tool man man-db
    tool aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    [ -d /usr/aarch64-linux-gnu/include ] || missing="$missing libc6-dev-arm64-cross"
    tool qemu-aarch64 qemu-user
fi
[ -n "$missing" ] || exit 0

sudo=''
[ "$(id -u)" -eq 0 ] || sudo='sudo '
command="${sudo}apt-get install -y --no-install-recommends$missing"
echo "missing packages:$missing"
if [ "${2:-}" != --install ]; then
    echo "to install them:  $command"
    exit 1
fi
echo "running:  $command"
export DEBIAN_FRONTEND=noninteractive
if ! sh -c "$command"; then
    echo "the package lists may be old; running:  ${sudo}apt-get update"
    sh -c "${sudo}apt-get update"
    sh -c "$command"
fi
