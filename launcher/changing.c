/* Operations that change something.
 *
 * Where one fails, the other program performs it from the beginning, and tells why.  So each is either one step,
 * done or not, or it may be done twice: what a first attempt has left of the work, the second one does. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base64.h"
#include "operations.h"

enum { MOST_LEVELS = 64 }; /* of a tree to remove; each holds a descriptor */

/* ---- writing --------------------------------------------------------------------------------------- */

int open_target(int folder, const char *name, mode_t mode, struct stat *there) {
    /* A FIFO or a device is not even opened: that might wake somebody. */
    if (fstatat(folder, name, there, 0)) {
        if (errno != ENOENT) return -1;
    } else if (!S_ISREG(there->st_mode))
        return errno = 0, -1;
    int file = openat(folder, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
    if (file < 0 || (!fstat(file, there) && S_ISREG(there->st_mode))) return file;
    close(file);
    return errno = 0, -1;
}

int replace_content(int file, const struct stat *there, const unsigned char *data, size_t size) {
    size_t written = 0;
    ssize_t taken = 0;
    while (written < size && (taken = write(file, data + written, size - written)) > 0) written += (size_t)taken;
    if (written < size) {
        int failure = errno;
        /* Empty as it was: so the other program knows that it may empty it after its own failure. */
        if (!there->st_size) (void)!ftruncate(file, 0);
        return errno = failure, 0;
    }
    /* Overwritten and then cut: to empty a file first takes the file system longer. */
    return (off_t)size >= there->st_size || !ftruncate(file, (off_t)size);
}

enum outcome write_file(struct buffer *answer, const struct request *request) {
    struct stat there;
    size_t size;
    if (!request->content.at) return LEFT;
    unsigned char *content = decode_base64(request->content.at, request->content.size, &size);
    if (!content) return LEFT;
    int file = open_target(AT_FDCWD, request->path, 0666, &there), failure = errno;
    int is_done = file >= 0 && replace_content(file, &there, content, size);
    if (is_done && !size && !there.st_size) is_done = !futimens(file, NULL); /* nothing for nothing is a write, too */
    /* A new file that its owner may not write: the other program could not open it, and would tell that. */
    int is_final = !is_done && file >= 0 && !there.st_size && !(there.st_mode & S_IWUSR);
    if (is_final) failure = errno;
    if (file >= 0) close(file);
    free(content);
    append_text(answer, "{}");
    errno = failure;
    return is_done ? DONE : file < 0 || is_final ? REFUSED : LEFT;
}

/* ---- folders --------------------------------------------------------------------------------------- */

static int is_folder(const char *path) {
    struct stat found;
    return !stat(path, &found) && S_ISDIR(found.st_mode);
}

/* Make the folders above a path, from the top; one that cannot be made shows at the path itself. */
static void make_parents(const char *path) {
    char parent[PATH_MAX];
    strcpy(parent, path);
    for (char *slash = parent; (slash = strchr(slash + 1, '/')); *slash = '/') {
        *slash = 0;
        mkdir(parent, 0777);
    }
}

int make_folder(const char *path, int recursive) {
    if (!mkdir(path, 0777)) return 1;
    int failure = errno;
    if (recursive && failure == ENOENT) make_parents(path);
    if (recursive && (!mkdir(path, 0777) || is_folder(path))) return 1;
    errno = recursive && failure == ENOENT ? 0 : failure; /* some of those above may have been made */
    return 0;
}

enum outcome create_directory(struct buffer *answer, const struct request *request) {
    append_text(answer, "{}");
    return make_folder(request->path, request->recursive) ? DONE : REFUSED;
}

/* ---- removing -------------------------------------------------------------------------------------- */

static int remove_folder(int parent, const char *name, int levels);

static int remove_entry(int folder, const struct dirent *entry, int levels) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) return 1;
    if (entry->d_type == DT_DIR) return remove_folder(folder, entry->d_name, levels);
    return entry->d_type != DT_UNKNOWN && (!unlinkat(folder, entry->d_name, 0) || errno == ENOENT);
}

/* Remove a folder with everything in it; 0 where something stays.  No symlink is followed. */
static int remove_folder(int parent, const char *name, int levels) {
    int folder = levels ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK) : -1;
    DIR *listing = folder < 0 ? NULL : fdopendir(folder);
    struct dirent *entry;
    int is_empty = 1;
    if (!listing) {
        if (folder >= 0) close(folder);
        return 0;
    }
    while (is_empty && (errno = 0, entry = readdir(listing))) is_empty = remove_entry(folder, entry, levels - 1);
    is_empty = is_empty && !errno;
    closedir(listing);
    return is_empty && !unlinkat(parent, name, AT_REMOVEDIR);
}

static int is_root(const struct stat *found) {
    struct stat root;
    return lstat("/", &root) || (found->st_dev == root.st_dev && found->st_ino == root.st_ino);
}

enum outcome remove_path(struct buffer *answer, const struct request *request) {
    struct stat found;
    append_text(answer, "{}");
    if (lstat(request->path, &found)) return errno == ENOENT && request->force ? DONE : REFUSED;
    if (S_ISDIR(found.st_mode) && request->recursive)
        return !is_root(&found) && remove_folder(AT_FDCWD, request->path, MOST_LEVELS) ? DONE : LEFT;
    if (!(S_ISDIR(found.st_mode) ? rmdir(request->path) : unlink(request->path))) return DONE;
    return errno == ENOENT ? LEFT : REFUSED; /* somebody was faster */
}
