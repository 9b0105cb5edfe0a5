#!/bin/sh
# The head of dist/execserver where it was built without a C compiler.  It needs sh, tail, tar and gzip, and loses
# what a script cannot do: a name forced into argv[0] (symlinks work), locks on trees in use, refusing noexec folders,
# and proving a tree.  So it takes none from where sandboxes may often write: not from the temporary folders.
hash=@HASH@ start=@START@ loader=@LOADER@
fail() {
    echo "execserver: $1" >&2
    exit 1
}
[ -e /proc/self/exe ] || fail "/proc is not mounted here"
if [ -n "$EXECSERVER_CACHE_DIR" ]; then
    set_of_places="$EXECSERVER_CACHE_DIR"
else
    [ -d "$HOME" ] && home=$HOME || home= # one that is not there is not ours to make
    set_of_places="${XDG_CACHE_HOME:+$XDG_CACHE_HOME/execserver
}${home:+$home/.cache/execserver}"
fi
newline='
'
usable() { # a folder of our own, named by its full path, that nobody else can write to
    case $1 in /*) ;; *) return 1 ;; esac
    mkdir -p -m 700 "$1" 2>/dev/null
    [ -d "$1" ] && [ -O "$1" ] && [ -z "$(find "$1" -prune -perm /022 2>/dev/null)" ]
}
unpack() {
    fresh="$1/.new-$$"
    mkdir -m 700 "$fresh" && tail -c +"$start" "$0" | tar -xzf - -C "$fresh" && mv "$fresh" "$1/$hash" && return
    rm -rf "$fresh"
    return 1
}
IFS=$newline
for place in $set_of_places; do
    usable "$place" || continue
    if [ -d "$place/$hash" ] || (umask 077 && unpack "$place") 2>/dev/null; then
        tree=$place/$hash
        break
    fi
done
[ -n "$tree" ] || fail "there is no folder to unpack into; name one that is yours alone in EXECSERVER_CACHE_DIR"
for name in LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT; do
    eval "value=\$$name; given=\${$name+yes}"
    [ -z "$given" ] || { export "_EXECSERVER_KEPT_$name=$value"; unset "$name"; }
done
case $0 in /*) self=$0 ;; *) self=$PWD/$0 ;; esac
exec "$tree/lib/$loader" --inhibit-cache --library-path "$tree/lib" "$tree/python3" -I -S -Xutf8 "$tree/boot.pyc" \
    -1 "$self" "$0" "$@"
