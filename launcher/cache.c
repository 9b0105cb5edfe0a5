/* A tree lies in PLACE/HASH and is there completely or not at all: it is unpacked beside, written to disk, renamed.
 *
 * Who may have made what is found?  The own caches are closed in every sandbox of ours (sandbox/own_files.py), so
 * they are believed.  Temporary folders, and paths over links that somebody could replace, are doubted: a sandbox,
 * also one of another program, may write there.  What lies there is compared with the manifest in our own file
 * before anything of it runs; that takes a tenth of a second, at every start.
 *
 * Locks (flock, so they end with their holder) are held on files of mode 0200: who may only read the place, as a
 * sandbox, cannot open them, and so nobody inside can lock them.  No start depends on one:
 *   PLACE/.lock      exclusive while unpacking or removing; whoever starts meanwhile waits a while for the tree
 *   PLACE/.use-HASH  shared by every program that runs from the tree; who removes it takes it exclusively before
 *   PLACE/.new-*     what is being filled or removed; rubbish when nobody holds the place's lock
 * A file helper in a doubted place has a part of the tree for itself alone, which it removes as soon as it runs.
 * A start changes nothing but, once a day, the modification time of its tree: by it unused trees are found. */
#define _GNU_SOURCE
#include "cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "unpack.h"

enum {
    DAY = 24 * 60 * 60,
    KEPT_UNUSED = 30 * DAY,
    WAIT_STEPS = 250,      /* of 20 ms: how long another start may take to unpack before this one does it too */
    MOST_REMOVED = 20000,  /* entries in one start: who can write there may have left any number */
    LEFT_ALONE = 60 * 60,  /* s: what is younger may be just being filled, where locks tell nothing */
    MOST_LINKS = 40,       /* as in the kernel */
};

#define UNFINISHED ".new-"
#define IN_USE ".use-"

static int refuse(struct place *place, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(place->why_not, sizeof place->why_not, format, arguments);
    va_end(arguments);
    return -1;
}

static int refuse_errno(struct place *place, const char *what) {
    if (is_shortage(errno)) place->is_short = 1;
    return refuse(place, "%s: %s", what, strerror(errno));
}

/* ---- places ---------------------------------------------------------------------------------------- */

static int add(struct place *places, int count, const char *folder, const char *below, const char *suffix) {
    if (!folder || folder[0] != '/') return count; /* relative ones would move with the working folder */
    size_t room = sizeof places[count].path;
    int length = snprintf(places[count].path, room, "%s%s%s", folder, below, suffix);
    if (length < 0 || (size_t)length >= room) return count;
    places[count].why_not[0] = 0;
    places[count].is_doubted = places[count].is_short = 0;
    return count + 1;
}

int find_places(struct place *places) {
    static const char *const shared[] = {"/tmp", "/dev/shm", "/var/tmp"};
    const char *chosen = getenv("EXECSERVER_CACHE_DIR"), *temporary = getenv("TMPDIR"), *home = getenv("HOME");
    char own[48];
    int count = 0;
    if (chosen && chosen[0]) return add(places, 0, chosen, "", "");
    snprintf(own, sizeof own, "%u", (unsigned)geteuid());
    count = add(places, count, getenv("XDG_CACHE_HOME"), "/execserver", "");
    /* A home that is not there is not ours to make: root would make /nonexistent, and with it a home for others. */
    if (home && !access(home, F_OK)) count = add(places, count, home, "/.cache/execserver", "");
    int first = count;
    if (temporary && strcmp(temporary, "/tmp")) count = add(places, count, temporary, "/execserver-", own);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        count = add(places, count, shared[i], "/execserver-", own);
    for (int i = first; i < count; i++) places[i].is_doubted = 1;
    return count;
}

/* Others must be able neither to write into a folder nor to put another one in its place. */
static int check_folder(struct place *place, const char *path, int is_own, uid_t root_owner) {
    struct stat found;
    uid_t me = geteuid();
    if (lstat(path, &found)) return refuse_errno(place, path);
    if (!S_ISDIR(found.st_mode)) return refuse(place, "%s is not a folder", path);
    if (is_own ? found.st_uid != me : found.st_uid != me && found.st_uid && found.st_uid != root_owner)
        return refuse(place, "%s belongs to another user", path);
    if (found.st_mode & (S_IWGRP | S_IWOTH) && (is_own || !(found.st_mode & S_ISVTX)))
        return refuse(place, "others can write to %s", path);
    return 0;
}

/* Tell whether every link on a path is root's, in a folder of root's, and we are not: no sandbox can be mounted
 * over a link, so one that our user can replace leads wherever a command wants. */
static int links_are_roots(const char *path, int depth) {
    char part[PATH_MAX], target[PATH_MAX], whole[2 * PATH_MAX];
    struct stat link, folder;
    if (depth > MOST_LINKS || strlen(path) >= sizeof part) return 0;
    strcpy(part, path);
    for (char *at = part + 1;; at++) {
        if (*at && *at != '/') continue;
        char was = *at, *name;
        *at = 0;
        if (lstat(part, &link)) return 0;
        if (S_ISLNK(link.st_mode)) {
            ssize_t length = readlink(part, target, sizeof target - 1);
            if (length < 0 || !(name = strrchr(part, '/'))) return 0;
            target[length] = 0;
            *name = 0;
            if (!geteuid() || link.st_uid || stat(*part ? part : "/", &folder) || folder.st_uid) return 0;
            if (folder.st_mode & (S_IWGRP | S_IWOTH) && !(folder.st_mode & S_ISVTX)) return 0;
            snprintf(whole, sizeof whole, "%s/%s%s", target[0] == '/' ? "" : part, target, path + (at - part));
            return links_are_roots(whole, depth + 1);
        }
        *at = was;
        if (!was) return 1;
    }
}

/* Tell whether a folder is ours, and we may not even look into it, as a strange umask once made them. */
static int lacks_our_rights(const char *path) {
    struct stat found;
    int error = errno;
    int lacks = !lstat(path, &found) && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
                (found.st_mode & (S_IRUSR | S_IXUSR)) != (S_IRUSR | S_IXUSR);
    errno = error;
    return lacks;
}

/* Resolve the place and check it and what it lies in; -1 without `why_not`: there is no such folder. */
static int open_place(struct place *place) {
    char real[PATH_MAX];
    struct stat root;
    struct statvfs system;
    place->why_not[0] = 0;
    if (!realpath(place->path, real)) return errno == ENOENT ? -1 : refuse_errno(place, "it cannot be reached");
    if (strlen(real) >= sizeof place->path) return refuse(place, "its path is too long");
    if (strpbrk(real, ":;$")) return refuse(place, "the loader takes no path with : ; or $ in it");
    if (stat("/", &root)) return refuse_errno(place, "/");
    if (check_folder(place, real, 1, root.st_uid)) return -1;
    if (strcmp(place->path, real) && !links_are_roots(place->path, 0)) place->is_doubted = 1;
    strcpy(place->path, real);
    for (char *slash = strrchr(real, '/'); slash && slash > real; slash = strrchr(real, '/')) {
        *slash = 0;
        if (check_folder(place, real, 0, root.st_uid)) return -1;
    }
    if (statvfs(place->path, &system)) return refuse_errno(place, "statvfs");
    if (system.f_flag & ST_NOEXEC) return refuse(place, "nothing can be executed there (mounted noexec)");
    if (lacks_our_rights(place->path)) chmod(place->path, 0700); /* if not, what is tried next says why */
    return 0;
}

static int make_place(struct place *place) {
    char path[sizeof place->path];
    strcpy(path, place->path);
    for (char *at = path + 1;; at++) {
        if (*at && *at != '/') continue;
        char was = *at;
        *at = 0;
        /* A temporary folder is made by who runs the machine: one of mode 0700 would shut others out of it. */
        if (was && place->is_doubted && access(path, F_OK)) return refuse(place, "there is no %.100s", path);
        int failure = mkdir(path, 0700) ? errno : 0;
        /* What is there may be given other reasons: that one may not write beside it, for example. */
        if (failure && failure != EEXIST && access(path, F_OK))
            return refuse(place, "cannot make %.100s: %s", path, strerror(failure));
        *at = was;
        if (!was) return open_place(place) ? (place->why_not[0] ? -1 : refuse(place, "it vanished")) : 0;
    }
}

/* ---- trees ----------------------------------------------------------------------------------------- */

static void inside(char *path, const struct place *place, const char *name) {
    snprintf(path, PATH_MAX, "%s/%s", place->path, name);
}

static int is_still(const char *path, int descriptor) {
    struct stat named, held;
    return !lstat(path, &named) && !fstat(descriptor, &held) && named.st_dev == held.st_dev &&
           named.st_ino == held.st_ino;
}

static int removed;

static int remove_entry(const char *path, const struct stat *found, int kind, struct FTW *where) {
    (void)found, (void)kind, (void)where;
    remove(path);
    return ++removed > MOST_REMOVED;
}

static void remove_tree(const char *path) { nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS); }

/* Open a file for locks, made if need be. */
static int open_lock(const struct place *place, const char *prefix, const char *name, int flags) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s%s", place->path, prefix, name);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | flags, 0200);
}

/* Tell whether nobody runs from a tree; the lock is held until `lock` is closed. */
static int is_unused(int lock) {
    if (lock < 0) return errno == ENOENT;
    /* Where a shared lock cannot be had of it, as on some network file systems, users have none either. */
    if (flock(lock, LOCK_SH | LOCK_NB) && errno != EWOULDBLOCK) return 0;
    return !flock(lock, LOCK_EX | LOCK_NB);
}

/* Remove a folder nobody uses.  It gets the name of an unfinished one first: who dies here leaves no half tree. */
static void remove_unused(const struct place *place, const char *name, time_t not_after) {
    struct stat found;
    char path[PATH_MAX], doomed[PATH_MAX];
    int is_tree = name[0] != '.';
    inside(path, place, name);
    snprintf(doomed, sizeof doomed, "%s/%s%s", place->path, is_tree ? UNFINISHED : "", name);
    if (lstat(path, &found) || found.st_mtime > not_after) return;
    int lock = is_tree ? open_lock(place, IN_USE, name, O_CLOEXEC) : -1;
    /* Looked at again: whoever starts meanwhile and cannot have the lock sets the time. */
    if ((!is_tree || is_unused(lock)) && !lstat(path, &found) && found.st_mtime <= not_after &&
        !rename(path, doomed)) {
        remove_tree(doomed);
        snprintf(path, sizeof path, "%s/" IN_USE "%s", place->path, name);
        if (is_tree) unlink(path);
    }
    if (lock >= 0) close(lock);
}

/* Remove old trees and what interrupted starts have left.  The caller holds the place's lock. */
static void prune(const struct place *place, const char *current) {
    DIR *listing = opendir(place->path);
    struct dirent *entry;
    size_t length = strlen(current);
    time_t now = time(NULL);
    if (!listing) return;
    while (removed <= MOST_REMOVED && (entry = readdir(listing))) {
        const char *name = entry->d_name;
        int is_tree = strlen(name) == length && strspn(name, "0123456789abcdef") == length;
        if (!strncmp(name, UNFINISHED, sizeof UNFINISHED - 1))
            remove_unused(place, name, place->is_doubted ? now - LEFT_ALONE : now);
        if (is_tree && strcmp(name, current)) remove_unused(place, name, now - KEPT_UNUSED);
    }
    closedir(listing);
}

/* Once a day, or when it must be told without a lock: note that the tree is in use, and look for others. */
static void note_use(const struct place *place, const char *hash, int tree, int is_locked) {
    struct stat found;
    time_t now = time(NULL);
    if (fstat(tree, &found)) return;
    if (is_locked && found.st_mtime <= now && now - found.st_mtime < DAY) return;
    if (futimens(tree, NULL) || !is_locked) return;
    int lock = open_lock(place, ".lock", "", O_CREAT | O_CLOEXEC);
    if (lock < 0) return;
    if (!flock(lock, LOCK_EX | LOCK_NB)) prune(place, hash);
    close(lock);
}

static void name_unfinished(const struct place *place, char *path) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(path, PATH_MAX, "%s/" UNFINISHED "%d-%ld", place->path, (int)getpid(), now.tv_nsec);
}

/* Put what lies in the way of our tree out of it; where nobody may do that to our own, it is refused. */
static int put_aside(struct place *place, const char *path) {
    char aside[PATH_MAX];
    if (!place->is_doubted && !lacks_our_rights(path)) return refuse_errno(place, "its tree cannot be opened");
    name_unfinished(place, aside);
    return rename(path, aside) ? refuse_errno(place, "what lies in it cannot be moved away") : -1;
}

int open_tree(struct place *place, const struct payload *payload) {
    char path[PATH_MAX];
    struct stat found;
    if (open_place(place)) return -1;
    inside(path, place, payload->hash);
    int tree = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (tree < 0 && errno == ENOENT) return -1;
    if (tree < 0) return is_shortage(errno) ? refuse_errno(place, "cannot open its tree") : put_aside(place, path);
    if (!place->is_doubted &&
        (fstat(tree, &found) || found.st_uid != geteuid() || found.st_mode & (S_IWGRP | S_IWOTH))) {
        close(tree);
        return refuse(place, "others can write to the tree in it");
    }
    int lock = open_lock(place, IN_USE, payload->hash, O_CREAT);
    if (lock < 0 && is_shortage(errno)) {
        close(tree);
        return refuse_errno(place, "cannot open the lock of its tree");
    }
    int is_locked = lock >= 0 && !flock(lock, LOCK_SH | LOCK_NB);
    /* Without a lock it goes on: that is a stranger's, or the place is read-only, or locks do not work there. */
    note_use(place, payload->hash, tree, is_locked);
    int is_ours = place->is_doubted ? is_proven(tree, &payload->manifest) : 1;
    if (is_ours < 0) refuse_errno(place, "its tree cannot be compared");
    if (is_ours > 0 && is_still(path, tree)) {
        if (lock < 0) return tree;
        close(tree);
        return lock;
    }
    close(tree);
    if (lock >= 0) close(lock);
    return is_ours ? -1 : put_aside(place, path);
}

static const char *unpack_tree(const struct payload *payload, int folder) {
    const char *wrong = payload->part ? unpack(payload->data, payload->part, folder) : NULL;
    return wrong ? wrong : unpack(payload->data + payload->part, payload->size - payload->part, folder);
}

static int fill(struct place *place, const struct payload *payload) {
    char fresh[PATH_MAX], path[PATH_MAX];
    int result = -1;
    name_unfinished(place, fresh);
    inside(path, place, payload->hash);
    if (mkdir(fresh, 0700)) return refuse_errno(place, "cannot make a folder in it");
    int folder = open(fresh, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) {
        refuse_errno(place, "cannot open a folder made in it");
    } else {
        const char *wrong = unpack_tree(payload, folder);
        if (wrong) {
            errno ? refuse_errno(place, wrong) : refuse(place, "%s", wrong);
        } else if (syncfs(folder)) { /* else a power cut could leave a tree with holes in it */
            refuse_errno(place, "cannot write to disk");
        } else if (rename(fresh, path) && errno != EEXIST && errno != ENOTEMPTY) {
            refuse_errno(place, "cannot rename the tree");
        } else {
            result = 0; /* renamed, or another start was faster */
        }
        close(folder);
    }
    remove_tree(fresh);
    return result;
}

/* Return the size of what is packed in an archive that ends here. */
static uint64_t size_of(const unsigned char *end) {
    const unsigned char *tail = end - 4;
    return tail[0] | tail[1] << 8 | tail[2] << 16 | (uint64_t)tail[3] << 24;
}

/* Without room it is not begun: a start that falls back to another place shall not try for long each time. */
static int has_room(struct place *place, const struct payload *payload) {
    struct statvfs system;
    uint64_t needed = size_of(payload->data + payload->size) + (payload->part ? size_of(payload->data + payload->part) : 0);
    if (statvfs(place->path, &system) || !system.f_blocks) return 1;
    if ((uint64_t)(geteuid() ? system.f_bavail : system.f_bfree) * system.f_frsize >= needed) return 1;
    errno = ENOSPC;
    return refuse_errno(place, "cannot write"), 0;
}

int install_tree(struct place *place, const struct payload *payload) {
    struct timespec step = {0, 20 * 1000 * 1000};
    char path[PATH_MAX];
    int result = 0, is_locked = 0;
    if (make_place(place)) return -1;
    inside(path, place, payload->hash);
    int lock = open_lock(place, ".lock", "", O_CREAT | O_CLOEXEC);
    /* A lock where others write may be anybody's: there it is not waited for. */
    for (int i = 0; lock >= 0 && i < (place->is_doubted ? 1 : WAIT_STEPS); i++) {
        is_locked = !flock(lock, LOCK_EX | LOCK_NB);
        if (is_locked || errno != EWOULDBLOCK || !access(path, F_OK)) break;
        nanosleep(&step, NULL);
    }
    if (access(path, F_OK)) {
        result = has_room(place, payload) ? fill(place, payload) : -1;
        /* Who holds the lock takes what others have unpacked meanwhile for rubbish. */
        if (result && !access(path, F_OK)) result = 0, place->why_not[0] = 0;
        if (is_locked && !result) prune(place, payload->hash);
    }
    if (lock >= 0) close(lock);
    return result;
}

void discard_tree(struct place *place, const struct payload *payload) {
    int lock = open_lock(place, ".lock", "", O_CREAT | O_CLOEXEC);
    if (lock < 0) return;
    if (!flock(lock, LOCK_EX | LOCK_NB)) remove_unused(place, payload->hash, time(NULL));
    close(lock);
}

int install_part(struct place *place, const struct payload *payload, char *path) {
    if (make_place(place)) return -1;
    int lock = open_lock(place, ".lock", "", O_CREAT | O_CLOEXEC);
    if (lock >= 0 && !flock(lock, LOCK_EX | LOCK_NB)) prune(place, payload->hash);
    if (lock >= 0) close(lock);
    name_unfinished(place, path);
    if (mkdir(path, 0700)) return refuse_errno(place, "cannot make a folder in it");
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const char *wrong = folder < 0 ? "cannot open a folder made in it" : unpack(payload->data, payload->part, folder);
    if (wrong) {
        errno ? refuse_errno(place, wrong) : refuse(place, "%s", wrong);
        remove_tree(path);
    }
    if (folder >= 0) close(folder);
    return wrong ? -1 : 0;
}

void remove_part(const char *path) { remove_tree(path); }
