#!/bin/sh
# Installs execserver: picks the file for this machine, checks its hash, places it and the names it is called by.
#
#   sh install.sh [FOLDER]       by default /usr/local/bin as root, ~/.local/bin else
#
# The files lie beside this script, or at the address in EXECSERVER_URL, from where curl or wget gets them.
set -eu
hashes='@HASHES@'
fail() {
    echo "install.sh: $1" >&2
    exit 1
}

case $(uname -s) in Linux) ;; *) fail "execserver runs on Linux, and this is $(uname -s)" ;; esac
machine=$(uname -m)
[ "$machine" = arm64 ] && machine=aarch64
[ "$machine" = amd64 ] && machine=x86_64
name=execserver-$machine
wanted=
while read -r hash file; do
    [ "$file" != "$name" ] || wanted=$hash
done <<END
$hashes
END
[ -n "$wanted" ] || fail "there is no file for this kind of processor ($machine)"

if [ $# -gt 0 ]; then
    folder=$1
elif [ "$(id -u)" = 0 ]; then
    folder=/usr/local/bin
else
    folder=${HOME:?}/.local/bin
fi
mkdir -p "$folder" || fail "$folder cannot be made"
folder=$(cd "$folder" && pwd)
fresh=$folder/.execserver.$$
trap 'rm -f "$fresh"' EXIT
trap 'exit 1' HUP INT TERM
beside=$(dirname "$0")/$name
if [ -f "$beside" ]; then
    cp "$beside" "$fresh"
elif [ -z "${EXECSERVER_URL-}" ]; then
    fail "$beside is not there; put it there, or name in EXECSERVER_URL where it can be got from"
elif command -v curl >/dev/null; then
    curl -fsSL -o "$fresh" "$EXECSERVER_URL/$name" || fail "curl cannot get $EXECSERVER_URL/$name"
else
    wget -q -O "$fresh" "$EXECSERVER_URL/$name" || fail "wget cannot get $EXECSERVER_URL/$name"
fi
found=$(sha256sum <"$fresh") || fail "sha256sum does not work here, and nothing is installed unchecked"
[ "${found%% *}" = "$wanted" ] || fail "$name is damaged or another version: SHA-256 ${found%% *}, not $wanted"
chmod 755 "$fresh"
"$fresh" --version >/dev/null || fail "$name does not start here"
mv "$fresh" "$folder/execserver"
# Where another program has one of the names, none is made, and it says so.
links=$("$folder/execserver" install-aliases "$folder" | sed "s/ -> .*//; s/.*/'&'/") || true
echo "installed: $("$folder/execserver" --version) in $folder; try it with \`$folder/execserver self-test\`"
echo "to remove it:" rm -f "'$folder/execserver'" $links
