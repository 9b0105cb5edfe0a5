/* Operations that only look. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base64.h"
#include "operations.h"

static const char *truth(int value) { return value ? "true" : "false"; }

enum outcome get_metadata(struct buffer *answer, const struct request *request) {
    struct stat found;
    char text[256];
    if (lstat(request->path, &found)) return REFUSED;
    int is_link = S_ISLNK(found.st_mode);
    if (is_link && stat(request->path, &found)) return REFUSED;
    if (found.st_mtim.tv_sec < 0) found.st_mtim = (struct timespec){0, 0}; /* as times before 1970 are told */
    if (found.st_mtim.tv_sec > LLONG_MAX / 1000 - 1) return LEFT;
    long long modified_ms = found.st_mtim.tv_sec * 1000LL + found.st_mtim.tv_nsec / 1000000;
    snprintf(text, sizeof text,
             "{\"isDirectory\":%s,\"isFile\":%s,\"isSymlink\":%s,\"size\":%lld,\"createdAtMs\":0,"
             "\"modifiedAtMs\":%lld}",
             truth(S_ISDIR(found.st_mode)), truth(S_ISREG(found.st_mode)), truth(is_link), (long long)found.st_size,
             modified_ms);
    append_text(answer, text);
    return DONE;
}

enum outcome canonicalize(struct buffer *answer, const struct request *request) {
    struct stat opened, named;
    char link[32], real[PATH_MAX];
    int file = open(request->path, O_PATH | O_CLOEXEC);
    if (file < 0) return REFUSED;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, real, sizeof real - 1);
    if (size > 0) real[size] = 0;
    /* The kernel's text is no path if the file was just removed or lies outside our root. */
    int is_real = size > 0 && is_normal(real) && !lstat(real, &named) && !fstat(file, &opened) &&
                  named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
    close(file);
    if (!is_real) return LEFT;
    append_text(answer, "{\"path\":\"file://");
    for (const char *letter = real; *letter; letter++) {
        snprintf(link, sizeof link, is_plain(*letter) ? "%c" : "%%%02X", (unsigned char)*letter);
        append_text(answer, link);
    }
    append_text(answer, "\"}");
    return DONE;
}

/* Append an entry; 0 where its name or its kind takes more than a look. */
static int add_entry(struct buffer *answer, int folder, const struct dirent *entry) {
    struct stat found;
    int is_folder = entry->d_type == DT_DIR, is_file = entry->d_type == DT_REG;
    const unsigned char *at = (const unsigned char *)entry->d_name, *end = at + strlen(entry->d_name);
    for (size_t whole; at < end; at += whole)
        if (!(whole = character(at, (size_t)(end - at))) || *at < 0x20) return 0;
    if (entry->d_type == DT_UNKNOWN) return 0;
    if (!is_folder && !is_file) {
        if (fstatat(folder, entry->d_name, &found, 0)) return 1; /* it leads nowhere, and is left out */
        is_folder = S_ISDIR(found.st_mode), is_file = S_ISREG(found.st_mode);
    }
    if (answer->data[answer->size - 1] == '}') append_text(answer, ",");
    append_text(answer, "{\"fileName\":");
    append_quoted(answer, entry->d_name, strlen(entry->d_name));
    append_text(answer, ",\"isDirectory\":");
    append_text(answer, truth(is_folder));
    append_text(answer, ",\"isFile\":");
    append_text(answer, truth(is_file));
    append_text(answer, "}");
    return !answer->is_lost;
}

enum outcome read_directory(struct buffer *answer, const struct request *request) {
    DIR *listing = opendir(request->path);
    struct dirent *entry;
    int is_plain = 1;
    if (!listing) return REFUSED;
    append_text(answer, "{\"entries\":[");
    while (is_plain && !answer->is_lost && (errno = 0, entry = readdir(listing)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            is_plain = add_entry(answer, dirfd(listing), entry);
    is_plain = is_plain && !errno;
    closedir(listing);
    append_text(answer, "]}");
    return is_plain ? DONE : LEFT;
}

/* Tell whether a file is the kernel's own, and so may have content although it says that it is empty.  Some give each
 * byte once, as /proc/kmsg does: not even one may be read in vain. */
static int is_of_the_kernel(int file) {
    struct statfs found;
    if (fstatfs(file, &found)) return 1;
    switch ((unsigned long)found.f_type) {
        case PROC_SUPER_MAGIC:
        case SYSFS_MAGIC:
        case TRACEFS_MAGIC:
        case DEBUGFS_MAGIC: return 1;
        default: return 0;
    }
}

unsigned char *read_content(int file, const struct stat *status, size_t *size) {
    size_t filled = 0;
    ssize_t got = -1;
    if (!S_ISREG(status->st_mode) || status->st_size > MOST_CONTENT) return NULL;
    if (!status->st_size && is_of_the_kernel(file)) return NULL;
    /* One that says it is empty may have content all the same, in a file system that somebody wrote himself. */
    size_t wanted = status->st_size ? (size_t)status->st_size : 1;
    unsigned char *data = malloc(wanted);
    while (data && filled < wanted && (got = read(file, data + filled, wanted - filled)) > 0) filled += (size_t)got;
    if (got >= 0 && (status->st_size || !filled)) return *size = filled, data;
    free(data);
    return NULL;
}

enum outcome read_file(struct buffer *answer, const struct request *request) {
    struct stat found;
    size_t size = 0;
    if (stat(request->path, &found)) return REFUSED;
    if (!S_ISREG(found.st_mode)) return LEFT; /* opening it might wake somebody */
    int file = open(request->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) return REFUSED;
    unsigned char *content = fstat(file, &found) ? NULL : read_content(file, &found, &size);
    close(file);
    if (!content) return LEFT;
    append_text(answer, "{\"dataBase64\":\"");
    append_base64(answer, content, size);
    append_text(answer, "\"}");
    free(content);
    return DONE;
}
