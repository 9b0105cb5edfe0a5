/* Copies of small files, of symlinks, and of small trees of folders and such files; the rest, and every refusal,
 * is left to the other program. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "operations.h"

enum {
    MOST_LEVELS = 32,   /* of a tree; each holds two descriptors */
    MOST_ENTRIES = 512, /* all are looked at before the first one is copied */
};

enum { FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK };

static int is_same(const struct stat *one, const struct stat *other) {
    return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

static int has_holes(const struct stat *status) { return status->st_blocks * 512 < status->st_size; }

/* Once a copy has permissions with which its owner may not write, the other program could not copy it again. */
static int may_be_copied_twice(const struct stat *status) { return (status->st_mode & S_IWUSR) != 0; }

static int is_dot(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

/* ---- one file, one symlink ------------------------------------------------------------------------- */

/* Copy a file with its permissions into another one that is not the same; 0 where that is not usual, or fails. */
static int copy_file(int from, const char *name, int to, const char *target) {
    struct stat status, there;
    size_t size = 0;
    int reading = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (reading < 0) return 0;
    unsigned char *content = fstat(reading, &status) || has_holes(&status) || !may_be_copied_twice(&status)
                                 ? NULL
                                 : read_content(reading, &status, &size);
    close(reading);
    if (!content) return 0;
    mode_t mode = status.st_mode & 07777;
    int writing = open_target(to, target, mode, &there);
    /* The permissions come first: who may not read the one must not read the other, either. */
    int is_done = writing >= 0 && !is_same(&status, &there) &&
                  ((there.st_mode & 07777) == mode || !fchmod(writing, mode)) &&
                  replace_content(writing, &there, content, size);
    if (writing >= 0) close(writing);
    free(content);
    return is_done;
}

static int copy_link(const char *source, const char *destination) {
    char target[PATH_MAX];
    ssize_t size = readlink(source, target, sizeof target);
    if (size <= 0 || size == sizeof target) return 0;
    target[size] = 0;
    return !symlink(target, destination);
}

/* ---- a tree ---------------------------------------------------------------------------------------- */

/* Tell whether a folder holds nothing but folders and small files.  A symlink could not be copied twice, if what
 * comes behind it fails. */
static int is_simple(int parent, const char *name, int levels, int *left) {
    int folder = levels ? openat(parent, name, FOLDER | O_NOFOLLOW) : -1, is_one = 1;
    DIR *listing = folder < 0 ? NULL : fdopendir(folder);
    struct dirent *entry;
    struct stat found;
    if (!listing) {
        if (folder >= 0) close(folder);
        return 0;
    }
    while (is_one && (errno = 0, entry = readdir(listing))) {
        if (is_dot(entry->d_name)) continue;
        if (!(*left)--) is_one = 0;
        else if (entry->d_type == DT_DIR) is_one = is_simple(folder, entry->d_name, levels - 1, left);
        else
            is_one = entry->d_type == DT_REG && !fstatat(folder, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) &&
                     found.st_size <= MOST_CONTENT && !has_holes(&found) && may_be_copied_twice(&found);
    }
    is_one = is_one && !errno;
    closedir(listing);
    return is_one;
}

/* A folder that is written to, and those above it. */
struct level {
    const struct level *above;
    int number;
    struct stat status;
};

/* Tell whether something is a folder that is written to: symlinks or mounts may join the trees. */
static int is_among(const struct stat *status, const struct level *level) {
    while (level && !is_same(status, &level->status)) level = level->above;
    return level != NULL;
}

static int copy_folder(int from, const char *name, int to, const char *target, const struct level *above);

/* Copy what is in a folder. */
static int copy_entries(DIR *listing, int to, const struct level *level) {
    struct dirent *entry;
    int is_done = 1;
    while (is_done && (errno = 0, entry = readdir(listing))) {
        if (is_dot(entry->d_name)) continue;
        if (entry->d_type == DT_DIR) is_done = copy_folder(dirfd(listing), entry->d_name, to, entry->d_name, level);
        else is_done = entry->d_type == DT_REG && copy_file(dirfd(listing), entry->d_name, to, entry->d_name);
    }
    return is_done && !errno;
}

/* Copy a folder into another one, which is made if need be; that may be behind a symlink. */
static int copy_folder(int from, const char *name, int to, const char *target, const struct level *above) {
    struct level level = {above, above ? above->number + 1 : 1, {0}};
    struct stat read;
    int folder = openat(from, name, FOLDER | O_NOFOLLOW), made = -1;
    DIR *listing = folder < 0 ? NULL : fdopendir(folder);
    if (!listing) {
        if (folder >= 0) close(folder);
        return 0;
    }
    if (level.number <= MOST_LEVELS && !fstat(folder, &read) && !is_among(&read, above)) {
        mkdirat(to, target, 0777); /* what it could not make shows now */
        made = openat(to, target, FOLDER);
    }
    int is_done = made >= 0 && !fstat(made, &level.status) && !is_same(&read, &level.status) &&
                  copy_entries(listing, made, &level);
    closedir(listing);
    if (made >= 0) close(made);
    return is_done;
}

/* Tell whether a path, or what there is of it, leads to a folder or into it; also where that cannot be known. */
static int is_inside(const char *path, const char *folder) {
    char cut[PATH_MAX], real[PATH_MAX], found[PATH_MAX];
    strcpy(cut, path);
    if (!realpath(folder, real)) return 1;
    while (!realpath(cut, found)) {
        char *slash = strrchr(cut, '/');
        if (errno != ENOENT || !cut[1]) return 1;
        slash[slash == cut] = 0;
    }
    size_t size = strlen(real);
    return !strncmp(found, real, size) && (size == 1 || !found[size] || found[size] == '/');
}

static int copy_tree(const char *source, const char *destination) {
    int left = MOST_ENTRIES;
    return !is_inside(destination, source) && is_simple(AT_FDCWD, source, MOST_LEVELS, &left) &&
           make_folder(destination, 1) && copy_folder(AT_FDCWD, source, AT_FDCWD, destination, NULL);
}

enum outcome copy(struct buffer *answer, const struct request *request) {
    struct stat found;
    int is_done = 0;
    append_text(answer, "{}");
    if (request->recursive == NOT_GIVEN) return LEFT;
    if (lstat(request->source, &found)) return REFUSED;
    if (S_ISLNK(found.st_mode)) is_done = copy_link(request->source, request->destination);
    if (S_ISREG(found.st_mode)) is_done = copy_file(AT_FDCWD, request->source, AT_FDCWD, request->destination);
    if (S_ISDIR(found.st_mode)) is_done = request->recursive && copy_tree(request->source, request->destination);
    return is_done ? DONE : LEFT;
}
