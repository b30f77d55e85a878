#!/bin/sh
# Runs `make demo` and `make check` in a bare Debian 12, where no package can be forgotten. Needs root, debootstrap and
# a network that reaches a Debian mirror and a Python package index; this machine's apt and pip settings and its
# certificates go along. usage: bare_debian.sh [COMMAND...]      (default: make demo && make check)
#   MIRROR=http://...   Debian mirror (default: the one this machine's apt uses)
#   BARE=FOLDER         where the system is kept between runs (default build/bare)
set -eu
cd "$(dirname "$0")/.."
bare=$(mkdir -p "${BARE:-build/bare}" && cd "${BARE:-build/bare}" && pwd)
suite=bookworm
[ "$(id -u)" -eq 0 ] || { echo 'bare_debian.sh: must be run as root, for chroot' >&2; exit 1; }
command -v debootstrap > /dev/null || { echo 'bare_debian.sh: expected debootstrap; apt-get install debootstrap' >&2; exit 1; }

if [ -z "${MIRROR:-}" ]; then
    MIRROR=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 2> /dev/null | grep -v security | head -1)
fi
: "${MIRROR:=http://deb.debian.org/debian}"

if [ ! -f "$bare/done" ]; then
    rm -rf "$bare/root"
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$bare/root" "$MIRROR"
    touch "$bare/done"
fi
root=$bare/root

# The network as this machine reaches it: names, proxies, certificates, package index.
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/hosts "$root/etc/hosts"
mkdir -p "$root/etc/apt/apt.conf.d" "$root/usr/local/share/ca-certificates" "$root/etc/ssl/certs"
grep -hE '^ *Acquire::' /etc/apt/apt.conf.d/* /etc/apt/apt.conf 2> /dev/null > "$root/etc/apt/apt.conf.d/90host" || true
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
[ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
environment=$(env | grep -iE '^(https?_proxy|no_proxy|all_proxy|PIP_[A-Z_]*|TEST_SECONDS|SYSTOLE_TEST_SLOWER|SSL_CERT_FILE|REQUESTS_CA_BUNDLE)=' | grep -v PIP_FIND_LINKS || true)

# The clone as it is committed.
rm -rf "$root/work"
git clone -q --no-hardlinks . "$root/work"

for m in proc sys dev dev/pts; do
    mkdir -p "$root/$m"
    mountpoint -q "$root/$m" || mount --rbind "/$m" "$root/$m"
    mount --make-rslave "$root/$m"
done
trap 'for m in dev/pts dev sys proc; do umount -R -l "$root/$m" 2> /dev/null || true; done' EXIT

in_bare() {
    printf '%s\n' "$environment" | sed 's/^/export /; s/=\(.*\)/="\1"/' | grep '=' > "$root/tmp/environment" || true
    chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}" LANG=C.UTF-8 \
        /bin/sh -c ". /tmp/environment; cd /work && $1"
}
in_bare 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git make'
if [ $# -gt 0 ]; then
    in_bare "$*"
else
    in_bare 'make demo'
    in_bare 'make check'
fi
