/* Plain file requests: the beginning of what helpers/codex_fs.py does, answered in its words.
 *
 * To start the interpreter takes ten times as long as to look at a file, and in the sandbox of another program a
 * part of the tree is unpacked before.  So requests that change nothing are answered here, but only where every
 * step is the usual one: a short request, a path that means itself, no sandbox, no error.  Everything else, and
 * all rules about it, are left to the program in the tree, which begins anew: nothing was done, nothing said.
 * tests/packaging/test_plain_requests.py has both answer the same requests. */
#define _GNU_SOURCE
#include "plain.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"

enum {
    MOST_READ = 4096,       /* of a request; a pipe holds as much, whatever its user has used up */
    MOST_CONTENT = 1 << 20, /* of a file; what takes longer gains nothing here */
};

#define READ_AHEAD "_EXECSERVER_READ_AHEAD"

static const char FILE_HELPER[] = "codex-fs", HELPER_ARGUMENT[] = "--codex-run-as-fs-helper";

/* ---- who is asked ---------------------------------------------------------------------------------- */

static int is_one_of(const char *name, const char *const *names) {
    while (*names && strcmp(name, *names)) names++;
    return *names != NULL;
}

int is_file_helper(int argc, char **argv) {
    /* The order of execserver/dispatch.py: names that decide, the hidden argument, the Codex CLI, the word. */
    static const char *const others[] = {"codex-linux-sandbox", "codex-exec-mcp-server", "codex-execve-wrapper", NULL};
    const char *slash = argc ? strrchr(argv[0], '/') : NULL, *name = slash ? slash + 1 : argc ? argv[0] : "";
    if (!strcmp(name, FILE_HELPER)) return 1;
    if (argc < 2 || is_one_of(name, others)) return 0;
    return !strcmp(argv[1], HELPER_ARGUMENT) || (strcmp(name, "codex") && !strcmp(argv[1], FILE_HELPER));
}

/* ---- the request ----------------------------------------------------------------------------------- */

struct text {
    const char *at, *end;
};

struct request {
    char operation[24], uri[MOST_READ];
};

static int take(struct text *text, const char *word) {
    size_t size = strlen(word);
    while (text->at < text->end && *text->at && strchr(" \t\n\r", *text->at)) text->at++;
    if ((size_t)(text->end - text->at) < size || memcmp(text->at, word, size)) return 0;
    text->at += size;
    return 1;
}

/* Read a string of plain ASCII, without escapes; 0 if there is another one, or none, or it is too long. */
static int take_string(struct text *text, char *into, size_t room) {
    if (!take(text, "\"")) return 0;
    for (size_t size = 0; text->at < text->end && size < room; size++) {
        char letter = *text->at++;
        if (letter == '"') return into[size] = 0, 1;
        if (letter < 0x20 || letter > 0x7e || letter == '\\') return 0;
        into[size] = letter;
    }
    return 0;
}

/* Read an object; `member` reads the value of a name, 0 for a name that it does not expect. */
static int take_object(struct text *text, int (*member)(struct text *, const char *, struct request *),
                       struct request *request) {
    char name[24];
    if (!take(text, "{")) return 0;
    do
        if (!take_string(text, name, sizeof name) || !take(text, ":") || !member(text, name, request)) return 0;
    while (take(text, ","));
    return take(text, "}");
}

static int params_member(struct text *text, const char *name, struct request *request) {
    if (!strcmp(name, "sandbox") || !strcmp(name, "followSymlinks")) return take(text, "null");
    return !strcmp(name, "path") && !*request->uri && take_string(text, request->uri, sizeof request->uri);
}

static int request_member(struct text *text, const char *name, struct request *request) {
    if (!strcmp(name, "params")) return !*request->uri && take_object(text, params_member, request);
    return !strcmp(name, "operation") && !*request->operation &&
           take_string(text, request->operation, sizeof request->operation);
}

static int read_request(const char *data, size_t size, struct request *request) {
    struct text text = {data, data + size};
    return take_object(&text, request_member, request) && take(&text, "") && text.at == text.end;
}

/* Return the path of a URI, or a path, that is its own normalised form: `_is_plain` of protocol/paths.py. */
static const char *plain_path(const char *uri) {
    static const char PLAIN[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "!$&'()*+,-./:;=@[]^_|~";
    const char *path = strncmp(uri, "file:///", 8) ? uri : uri + 7;
    size_t size = strlen(path);
    if (path[0] != '/' || path[strspn(path, PLAIN)] || strstr(path, "//")) return NULL;
    if (size > 2 && (path[2] == ':' || path[2] == '|')) return NULL; /* a drive */
    if (size > 1 && path[size - 1] == '/') return NULL;
    for (const char *dot = path; (dot = strstr(dot, "/.")); dot += 2) {
        const char *behind = dot + (dot[2] == '.' ? 3 : 2);
        if (!*behind || *behind == '/') return NULL;
    }
    return path;
}

/* ---- the operations: each appends its response, or returns 0 ---------------------------------------- */

static const char *truth(int value) { return value ? "true" : "false"; }

static int get_metadata(struct buffer *answer, const char *path) {
    struct stat found;
    char text[256];
    if (lstat(path, &found)) return 0;
    int is_link = S_ISLNK(found.st_mode);
    if (is_link && stat(path, &found)) return 0;
    long long modified_ms = found.st_mtim.tv_sec * 1000LL + found.st_mtim.tv_nsec / 1000000;
    snprintf(text, sizeof text,
             "{\"isDirectory\":%s,\"isFile\":%s,\"isSymlink\":%s,\"size\":%lld,\"createdAtMs\":0,\"modifiedAtMs\":%lld}",
             truth(S_ISDIR(found.st_mode)), truth(S_ISREG(found.st_mode)), truth(is_link), (long long)found.st_size,
             modified_ms < 0 ? 0 : modified_ms);
    append_text(answer, text);
    return 1;
}

static int canonicalize(struct buffer *answer, const char *path) {
    struct stat opened, named;
    char link[32], real[PATH_MAX];
    int file = open(path, O_PATH | O_CLOEXEC);
    if (file < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, real, sizeof real - 1);
    if (size > 0) real[size] = 0;
    /* The kernel's text is no path if the file was just removed or lies outside our root. */
    int is_real = size > 0 && plain_path(real) == real && !lstat(real, &named) && !fstat(file, &opened) &&
                  named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
    close(file);
    if (!is_real) return 0;
    append_text(answer, "{\"path\":\"file://");
    append_text(answer, real);
    append_text(answer, "\"}");
    return 1;
}

/* Append an entry; 0 where its name or its kind takes more than a look. */
static int add_entry(struct buffer *answer, int folder, const struct dirent *entry) {
    struct stat found;
    int is_folder = entry->d_type == DT_DIR, is_file = entry->d_type == DT_REG;
    for (const char *letter = entry->d_name; *letter; letter++)
        if (*letter < 0x20 || *letter > 0x7e) return 0;
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

static int read_directory(struct buffer *answer, const char *path) {
    DIR *listing = opendir(path);
    struct dirent *entry;
    int is_plain = 1;
    if (!listing) return 0;
    append_text(answer, "{\"entries\":[");
    while (is_plain && !answer->is_lost && (errno = 0, entry = readdir(listing)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            is_plain = add_entry(answer, dirfd(listing), entry);
    is_plain = is_plain && !errno;
    closedir(listing);
    append_text(answer, "]}");
    return is_plain;
}

static void append_base64(struct buffer *answer, const unsigned char *data, size_t size) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t at = 0; at < size; at += 3) {
        size_t left = size - at;
        unsigned group = data[at] << 16 | (left > 1 ? data[at + 1] << 8 : 0) | (left > 2 ? data[at + 2] : 0);
        char digits[4] = {DIGITS[group >> 18], DIGITS[group >> 12 & 63], DIGITS[group >> 6 & 63], DIGITS[group & 63]};
        if (left < 3) digits[3] = '=';
        if (left < 2) digits[2] = '=';
        append(answer, digits, sizeof digits);
    }
}

static int read_file(struct buffer *answer, const char *path) {
    struct stat found;
    if (stat(path, &found) || !S_ISREG(found.st_mode)) return 0; /* opening another kind might wake somebody */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) return 0;
    size_t filled = 0, wanted = 0;
    ssize_t got = -1;
    unsigned char *data = NULL;
    if (!fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size <= MOST_CONTENT) {
        /* One that says it is empty may have content, as in /proc. */
        wanted = found.st_size ? (size_t)found.st_size : 1;
        data = malloc(wanted);
        while (data && filled < wanted && (got = read(file, data + filled, wanted - filled)) > 0) filled += (size_t)got;
    }
    close(file);
    int is_plain = got >= 0 && (found.st_size || !filled);
    if (is_plain) {
        append_text(answer, "{\"dataBase64\":\"");
        append_base64(answer, data, filled);
        append_text(answer, "\"}");
    }
    free(data);
    return is_plain;
}

/* ---- the answer ------------------------------------------------------------------------------------ */

/* Make the answer to a request; 0 where it is left to the other program. */
static int make_answer(struct buffer *answer, const char *data, size_t size) {
    static const struct {
        const char *name;
        int (*perform)(struct buffer *, const char *);
    } operations[] = {
        {"fs/getMetadata", get_metadata},
        {"fs/readFile", read_file},
        {"fs/readDirectory", read_directory},
        {"fs/canonicalize", canonicalize},
    };
    static struct request request;
    const char *path = read_request(data, size, &request) ? plain_path(request.uri) : NULL;
    for (size_t i = 0; path && i < sizeof operations / sizeof *operations; i++) {
        if (strcmp(request.operation, operations[i].name)) continue;
        append_text(answer, "{\"status\":\"ok\",\"payload\":{\"operation\":\"");
        append_text(answer, request.operation);
        append_text(answer, "\",\"response\":");
        int is_made = operations[i].perform(answer, path);
        append_text(answer, "}}\n");
        return is_made && !answer->is_lost;
    }
    return 0;
}

/* Write an answer; returns the exit status, or -1 where nothing was taken of it. */
static int say(const struct buffer *answer) {
    size_t written = 0;
    void (*pipe_signal)(int) = signal(SIGPIPE, SIG_IGN), (*size_signal)(int) = signal(SIGXFSZ, SIG_IGN);
    while (written < answer->size) {
        ssize_t taken = write(STDOUT_FILENO, answer->data + written, answer->size - written);
        struct pollfd room = {STDOUT_FILENO, POLLOUT, 0};
        if (taken >= 0) written += (size_t)taken;
        else if (errno == EAGAIN) poll(&room, 1, -1); /* who shares the open file made it non-blocking */
        else break;
    }
    int failure = errno;
    signal(SIGPIPE, pipe_signal), signal(SIGXFSZ, size_signal);
    if (written == answer->size) return 0;
    if (!written) return -1; /* the other program fails as well, and says so */
    dprintf(STDERR_FILENO, "fs sandbox helper failed: %s (os error %d)\n", strerror(failure), failure);
    return 1;
}

/* Read what there is of a request, up to `room` bytes; `is_whole`: to its end. */
static size_t read_ahead(char *data, size_t room, int *is_whole) {
    size_t filled = 0;
    ssize_t got = 1;
    while (filled < room && (got = read(STDIN_FILENO, data + filled, room - filled)) > 0) filled += (size_t)got;
    *is_whole = !got;
    return filled;
}

int answer_plainly(void) {
    static char data[MOST_READ];
    struct buffer answer = {0};
    char number[16];
    int kept[2], is_whole, status = -1;
    unsetenv(READ_AHEAD); /* a caller's would be none of ours */
    /* Made before anything is read: without a way to hand it on it stays where it is. */
    if (isatty(STDIN_FILENO) || pipe(kept)) return -1;
    size_t size = read_ahead(data, sizeof data, &is_whole);
    if (is_whole && make_answer(&answer, data, size)) status = say(&answer);
    free(answer.data);
    if (status < 0 && size && write(kept[1], data, size) == (ssize_t)size) {
        snprintf(number, sizeof number, "%d", kept[0]);
        setenv(READ_AHEAD, number, 1);
    } else
        close(kept[0]);
    close(kept[1]);
    return status;
}
