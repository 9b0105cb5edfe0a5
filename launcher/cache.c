/* A tree lies in PLACE/HASH and is there completely or not at all: it is unpacked beside, written to disk, renamed.
 *
 * Locks (flock, so they end with their holder):
 *   PLACE/.lock   exclusive while unpacking or removing; whoever starts meanwhile waits for the tree to appear
 *   PLACE/HASH    shared by every program that runs from it; who removes a tree takes it exclusively before
 *   PLACE/.new-*  exclusive while it is being filled; without a holder it is rubbish
 * A start changes nothing but, once a day, the modification time of its tree: by it unused trees are found. */
#define _GNU_SOURCE
#include "cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
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
    WAIT_STEPS = 1000, /* of 20 ms: how long another start may take to unpack before this one does it too */
};

#define UNFINISHED ".new-"

static int refuse(struct place *place, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(place->why_not, sizeof place->why_not, format, arguments);
    va_end(arguments);
    return -1;
}

static int refuse_errno(struct place *place, const char *what) {
    return refuse(place, "%s: %s", what, strerror(errno));
}

/* ---- places ---------------------------------------------------------------------------------------- */

static int add(struct place *places, int count, const char *folder, const char *below, const char *suffix) {
    if (!folder || folder[0] != '/') return count; /* relative ones would move with the working folder */
    size_t room = sizeof places[count].path;
    int length = snprintf(places[count].path, room, "%s%s%s", folder, below, suffix);
    if (length < 0 || (size_t)length >= room) return count;
    places[count].why_not[0] = 0;
    return count + 1;
}

int find_places(struct place *places) {
    static const char *const shared[] = {"/tmp", "/dev/shm", "/var/tmp"};
    const char *chosen = getenv("EXECSERVER_CACHE_DIR"), *temporary = getenv("TMPDIR");
    char own[48];
    int count = 0;
    if (chosen && chosen[0]) return add(places, 0, chosen, "", "");
    snprintf(own, sizeof own, "%u", (unsigned)geteuid());
    count = add(places, count, getenv("XDG_CACHE_HOME"), "/execserver", "");
    count = add(places, count, getenv("HOME"), "/.cache/execserver", "");
    if (temporary && strcmp(temporary, "/tmp")) count = add(places, count, temporary, "/execserver-", own);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        count = add(places, count, shared[i], "/execserver-", own);
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
    strcpy(place->path, real);
    for (char *slash = strrchr(real, '/'); slash && slash > real; slash = strrchr(real, '/')) {
        *slash = 0;
        if (check_folder(place, real, 0, root.st_uid)) return -1;
    }
    if (statvfs(place->path, &system)) return refuse_errno(place, "statvfs");
    if (system.f_flag & ST_NOEXEC) return refuse(place, "nothing can be executed there (mounted noexec)");
    return 0;
}

static int make_place(struct place *place) {
    char path[sizeof place->path];
    strcpy(path, place->path);
    for (char *at = path + 1;; at++) {
        if (*at && *at != '/') continue;
        char was = *at;
        *at = 0;
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

static int remove_entry(const char *path, const struct stat *found, int kind, struct FTW *where) {
    (void)found, (void)kind, (void)where;
    remove(path);
    return 0;
}

static void remove_tree(const char *path) { nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS); }

/* Remove a folder nobody uses.  It gets the name of an unfinished one first: who dies here leaves no half tree. */
static void remove_unused(const struct place *place, const char *name, time_t not_after) {
    struct stat found;
    char path[PATH_MAX], doomed[PATH_MAX];
    inside(path, place, name);
    snprintf(doomed, sizeof doomed, "%s/%s%s", place->path, name[0] == '.' ? "" : UNFINISHED, name);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) return;
    if (!fstat(folder, &found) && found.st_mtime <= not_after && !flock(folder, LOCK_EX | LOCK_NB) &&
        is_still(path, folder) && !rename(path, doomed))
        remove_tree(doomed);
    close(folder);
}

/* Remove old trees and what interrupted starts have left.  The caller holds the place's lock. */
static void prune(const struct place *place, const char *current) {
    DIR *listing = opendir(place->path);
    struct dirent *entry;
    size_t length = strlen(current);
    time_t now = time(NULL);
    if (!listing) return;
    while ((entry = readdir(listing))) {
        const char *name = entry->d_name;
        int is_tree = strlen(name) == length && strspn(name, "0123456789abcdef") == length;
        if (!strncmp(name, UNFINISHED, sizeof UNFINISHED - 1)) remove_unused(place, name, now);
        if (is_tree && strcmp(name, current)) remove_unused(place, name, now - KEPT_UNUSED);
    }
    closedir(listing);
}

static int open_lock(const struct place *place) {
    char path[PATH_MAX];
    inside(path, place, ".lock");
    return open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
}

/* Once a day: note that the tree is in use, and look for others that are not. */
static void note_use(const struct place *place, const char *hash, int tree) {
    struct stat found;
    time_t now = time(NULL);
    if (fstat(tree, &found) || (found.st_mtime <= now && now - found.st_mtime < DAY)) return;
    if (futimens(tree, NULL)) return;
    int lock = open_lock(place);
    if (lock < 0) return;
    if (!flock(lock, LOCK_EX | LOCK_NB)) prune(place, hash);
    close(lock);
}

int open_tree(struct place *place, const struct payload *payload) {
    char path[PATH_MAX];
    struct stat found;
    if (open_place(place)) return -1;
    inside(path, place, payload->hash);
    int tree = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (tree < 0) return errno == ENOENT ? -1 : refuse_errno(place, "its tree cannot be opened");
    if (fstat(tree, &found) || found.st_uid != geteuid() || found.st_mode & (S_IWGRP | S_IWOTH)) {
        close(tree);
        return refuse(place, "others can write to the tree in it");
    }
    /* Where locks do not work, as on some network file systems, nothing is ever removed either. */
    if ((flock(tree, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK) || !is_still(path, tree)) {
        close(tree);
        return -1;
    }
    note_use(place, payload->hash, tree);
    return tree;
}

static int fill(struct place *place, const struct payload *payload) {
    char fresh[PATH_MAX], path[PATH_MAX], name[48];
    struct timespec now;
    int result = -1;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, sizeof name, UNFINISHED "%d-%ld", (int)getpid(), now.tv_nsec);
    inside(fresh, place, name);
    inside(path, place, payload->hash);
    if (mkdir(fresh, 0700)) return refuse_errno(place, "cannot make a folder in it");
    int folder = open(fresh, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) {
        refuse_errno(place, "cannot open a folder made in it");
    } else {
        flock(folder, LOCK_EX | LOCK_NB);
        const char *wrong = unpack(payload->data, payload->size, folder);
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

int install_tree(struct place *place, const struct payload *payload) {
    struct timespec step = {0, 20 * 1000 * 1000};
    char path[PATH_MAX];
    if (make_place(place)) return -1;
    inside(path, place, payload->hash);
    int lock = open_lock(place), result, locked = -1;
    if (lock < 0) return refuse_errno(place, "cannot write to it");
    for (int i = 0; i < WAIT_STEPS && (locked = flock(lock, LOCK_EX | LOCK_NB)) && errno == EWOULDBLOCK; i++) {
        if (!access(path, F_OK)) break;
        nanosleep(&step, NULL);
    }
    if (!access(path, F_OK)) {
        result = 0;
    } else {
        result = fill(place, payload);
        if (!locked && !result) prune(place, payload->hash);
    }
    close(lock);
    return result;
}
