#!/bin/sh
# Make what a cluster needs before its first start, in the folder that is named (default: here):
#   secrets/engine-auth   relays:            --engine-auth, may not make tokens
#   secrets/tokens-auth   whoever makes them: relay token ... --engine-auth
#   secrets/users.acl     Redis: what each of them may do; hashes only
#   secrets/redis.conf, secrets/sentinel.conf   passwords of replicas and Sentinels
#   data/                 one folder for each Redis and Sentinel of compose.yaml
# Passwords are random and stand nowhere else. What is there already stays as it is.
set -eu
umask 077
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-.}"

password() {
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

hash() {
    printf %s "$1" | sha256sum | cut -d ' ' -f 1
}

if [ ! -e secrets ]; then
    relay=$(password) tokens=$(password) replica=$(password) sentinel=$(password)
    mkdir secrets.new
    echo "relay:$relay" >secrets.new/engine-auth
    echo "tokens:$tokens" >secrets.new/tokens-auth
    sed -e "s/@RELAY@/$(hash "$relay")/" -e "s/@TOKENS@/$(hash "$tokens")/" \
        -e "s/@REPLICA@/$(hash "$replica")/" -e "s/@SENTINEL@/$(hash "$sentinel")/" \
        "$here/users.acl" >secrets.new/users.acl
    printf 'masteruser replica\nmasterauth %s\n' "$replica" >secrets.new/redis.conf
    printf 'sentinel auth-user relay sentinel\nsentinel auth-pass relay %s\n' "$sentinel" >secrets.new/sentinel.conf
    mv secrets.new secrets
fi
for number in 1 2 3; do
    mkdir -p "data/redis$number" "data/sentinel$number"
    # Sentinels write what they learn into their configuration.
    if [ ! -e "data/sentinel$number/sentinel.conf" ]; then
        cat "$here/sentinel.conf" secrets/sentinel.conf >"data/sentinel$number/sentinel.conf"
    fi
done
