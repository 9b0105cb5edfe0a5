/* Plain file requests: the beginning of what helpers/codex_fs.py does, answered in its words.
 *
 * To start the interpreter takes ten times as long as to look at a file, and in the sandbox of another program a
 * part of the tree is unpacked before.  So requests are answered here, but only where every step is the usual one:
 * a path that means itself, no sandbox, no error.  Everything else, and all rules about it, are left to the
 * program in the tree, which begins anew: nothing was said, and what was done is no hindrance (operations.h).
 * tests/packaging/test_plain_requests.py has both answer the same requests. */
#define _GNU_SOURCE
#include "plain.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "operations.h"

enum {
    FIRST_READ = 4096,   /* of a request; a pipe holds as much, whatever its user has used up */
    MOST_READ = 1 << 20, /* more than one may not hold */
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

/* ---- the answer ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    operation *perform;
    int changes_something;
} OPERATIONS[] = {
    {"fs/getMetadata", get_metadata, 0},
    {"fs/readFile", read_file, 0},
    {"fs/readDirectory", read_directory, 0},
    {"fs/canonicalize", canonicalize, 0},
    {"fs/writeFile", write_file, 1},
    {"fs/createDirectory", create_directory, 1},
    {"fs/remove", remove_path, 1},
    {"fs/copy", copy, 1},
};

/* Make the answer that the kernel refuses a request; 0 where the reason is not a usual one.
 * These have the same text in every C library, also in that of the reference. */
static int tell_refusal(struct buffer *answer, int reason) {
    static const struct {
        int reason, code;
    } usual[] = {
        {ENOENT, -32004},  {EACCES, -32600}, {EPERM, -32600},     {EEXIST, -32603},
        {ENOTDIR, -32603}, {EISDIR, -32603}, {ENOTEMPTY, -32603}, {EROFS, -32603},
        {ENOSPC, -32603},  {EFBIG, -32603},
    };
    char text[160];
    size_t at = 0, count = sizeof usual / sizeof *usual;
    while (at < count && usual[at].reason != reason) at++;
    if (at == count) return 0;
    snprintf(text, sizeof text,
             "{\"status\":\"error\",\"payload\":{\"code\":%d,\"message\":\"%s (os error %d)\"}}\n", usual[at].code,
             strerror(reason), reason);
    answer->size = 0;
    append_text(answer, text);
    return 1;
}

/* Make the answer to a request; 0 where it is left to the other program. */
static int make_answer(struct buffer *answer, const char *data, size_t size, int *has_changed) {
    static struct request request;
    size_t at = 0, count = sizeof OPERATIONS / sizeof *OPERATIONS;
    if (!read_request(data, size, &request)) return 0;
    while (at < count && strcmp(request.operation, OPERATIONS[at].name)) at++;
    if (at == count) return 0;
    append_text(answer, "{\"status\":\"ok\",\"payload\":{\"operation\":\"");
    append_text(answer, request.operation);
    append_text(answer, "\",\"response\":");
    if (answer->is_lost) return 0; /* nothing is begun; what changes something needs no more than there is now */
    enum outcome outcome = OPERATIONS[at].perform(answer, &request);
    if (outcome == REFUSED) return tell_refusal(answer, errno);
    append_text(answer, "}}\n");
    *has_changed = outcome == DONE && OPERATIONS[at].changes_something;
    return outcome == DONE && !answer->is_lost;
}

/* Write an answer; returns the exit status, or -1 where nothing was taken of it and the other program may try. */
static int say(const struct buffer *answer, int has_changed) {
    size_t written = 0;
    while (written < answer->size) {
        ssize_t taken = write(STDOUT_FILENO, answer->data + written, answer->size - written);
        struct pollfd room = {STDOUT_FILENO, POLLOUT, 0};
        if (taken >= 0) written += (size_t)taken;
        else if (errno == EAGAIN) poll(&room, 1, -1); /* who shares the open file made it non-blocking */
        else break;
    }
    if (written == answer->size) return 0;
    if (!written && !has_changed) return -1; /* the other program fails as well, and says so */
    const char *reason = errno == EIO ? "I/O error" : strerror(errno); /* in the words of the other program */
    dprintf(STDERR_FILENO, "fs sandbox helper failed: %s (os error %d)\n", reason, errno);
    return 1;
}

/* Read what there is of a request, as much as the pipe to hand it on holds; `is_whole`: to its end. */
static size_t read_ahead(char *data, int pipe, int *is_whole) {
    size_t filled = 0, room = FIRST_READ;
    ssize_t got = 1;
    while (filled < room && (got = read(STDIN_FILENO, data + filled, room - filled)) > 0) {
        filled += (size_t)got;
        if (filled == FIRST_READ && fcntl(pipe, F_SETPIPE_SZ, MOST_READ) >= MOST_READ) room = MOST_READ;
    }
    *is_whole = !got;
    return filled;
}

int answer_plainly(void) {
    static char data[MOST_READ];
    struct buffer answer = {0};
    char number[16];
    int kept[2], is_whole, has_changed = 0, status = -1;
    unsetenv(READ_AHEAD); /* a caller's would be none of ours */
    /* Made before anything is read: without a way to hand it on it stays where it is. */
    if (isatty(STDIN_FILENO) || pipe(kept)) return -1;
    size_t size = read_ahead(data, kept[1], &is_whole);
    /* Neither who has left nor a limit on files ends this program: both are told. */
    void (*pipe_signal)(int) = signal(SIGPIPE, SIG_IGN), (*size_signal)(int) = signal(SIGXFSZ, SIG_IGN);
    if (is_whole && make_answer(&answer, data, size, &has_changed)) status = say(&answer, has_changed);
    signal(SIGPIPE, pipe_signal), signal(SIGXFSZ, size_signal);
    free(answer.data);
    if (status < 0 && size && write(kept[1], data, size) == (ssize_t)size) {
        snprintf(number, sizeof number, "%d", kept[0]);
        setenv(READ_AHEAD, number, 1);
    } else
        close(kept[0]);
    close(kept[1]);
    return status;
}
