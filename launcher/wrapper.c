/* codex-execve-wrapper, as the one file is it: what helpers/execve_wrapper.py does, in the same words.
 *
 * A patched shell starts this in place of every program, with that program's environment and inside of its
 * sandbox: no tree can be looked for or unpacked there, and each millisecond counts.  Only system calls that
 * a sandbox leaves are made.  Nothing is freed: the process ends, or becomes the program. */
#define _GNU_SOURCE
#include "wrapper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"

enum {
    MOST_DESCRIPTORS = 16,        /* of one message */
    MOST_NUMBERS = 256,           /* looked at where there is no /proc */
    MAX_FRAME = 8 * 1024 * 1024,  /* above what a kernel passes to a program */
    LENGTH_BYTES = 4,
    FAILED = 1,
    USAGE = 2,
};

static const char SOCKET_VARIABLE[] = "CODEX_ESCALATE_SOCKET";
static const char *const PRIVATE_VARIABLES[] = {"CODEX_ESCALATE_SOCKET", "BASH_EXEC_WRAPPER", "EXEC_WRAPPER"};
static const char USAGE_LINE[] = "Usage: codex-execve-wrapper <FILE> [ARGV]...\n";
static const char NO_ANSWER[] = "failed to receive EscalateResponse";
static const char NO_RESULT[] = "failed to receive the result of the escalated command";

extern char **environ;

static int fail(const char *what, const char *cause) {
    dprintf(2, cause ? "Error: %s\n\nCaused by:\n    %s\n" : "Error: %s\n", what, cause);
    return FAILED;
}

static const char *error_text(int number) {
    static char text[128];
    snprintf(text, sizeof text, "%s (os error %d)", strerror(number), number);
    return text;
}

static int wrong_usage(const char *word) {
    if (word)
        dprintf(2, "error: unexpected argument '%s' found\n\n  tip: to pass '%s' as a value, use '-- %s'\n", word,
                word, word);
    else
        dprintf(2, "error: the following required arguments were not provided:\n  <FILE>\n");
    dprintf(2, "\n%s\nFor more information, try '--help'.\n", USAGE_LINE);
    return USAGE;
}

/* Read the number of the inherited socket; -1, and all is said, if there is none. */
static int socket_number(void) {
    const char *value = getenv(SOCKET_VARIABLE), *digits = value;
    const char *wrong = NULL;
    char text[96];
    long number = 0;
    if (!value) wrong = "environment variable not found";
    else if (!*value) wrong = "cannot parse integer from empty string";
    else {
        if (*digits == '-' || *digits == '+') digits++;
        if (!*digits || digits[strspn(digits, "0123456789")]) wrong = "invalid digit found in string";
        else if (strlen(digits) > 10 || (number = atol(digits)) > INT_MAX)
            wrong = *value == '-' ? "number too small to fit in target type" : "number too large to fit in target type";
        else if (*value == '-' && number) {
            snprintf(text, sizeof text, "%s is not a valid file descriptor: -%ld", SOCKET_VARIABLE, number);
            wrong = text;
        }
    }
    if (!wrong && fcntl((int)number, F_GETFD) < 0) wrong = error_text(errno);
    return wrong ? (fail(wrong, NULL), -1) : (int)number;
}

/* Send bytes with descriptors; returns how many bytes were taken, or -1. */
static ssize_t send_rights(int to, const void *data, size_t size, const int *descriptors, size_t count) {
    union {
        char room[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec piece = {(void *)data, size};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    ssize_t sent;
    if (count) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(head), descriptors, count * sizeof(int));
    }
    while ((sent = sendmsg(to, &message, MSG_NOSIGNAL)) < 0) {
        struct pollfd room = {to, POLLOUT, 0};
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return -1; /* else somebody made it non-blocking, for all who share it */
        poll(&room, 1, -1);
    }
    return sent;
}

/* Send a frame whose first bytes are kept free for its length; 0, or -1. */
static int send_frame(int stream, struct buffer *frame, const int *descriptors, size_t count) {
    if (!frame->data) return errno = ENOMEM, -1;
    if (frame->size - LENGTH_BYTES > MAX_FRAME) return errno = E2BIG, -1;
    for (int i = 0; i < LENGTH_BYTES; i++)
        frame->data[i] = (char)((frame->size - LENGTH_BYTES) >> 8 * i & 0xff);
    for (size_t sent = 0; sent < frame->size; count = 0) {
        ssize_t taken = send_rights(stream, frame->data + sent, frame->size - sent, descriptors, count);
        if (taken < 0) return -1;
        sent += (size_t)taken;
    }
    return 0;
}

/* Receive as many bytes; NULL, or why not. */
static const char *receive(int stream, char *data, size_t size, const char *part) {
    static char text[64];
    while (size) {
        ssize_t got = recv(stream, data, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_text(errno);
        if (!got) {
            snprintf(text, sizeof text, "socket closed while receiving frame %s", part);
            return text;
        }
        data += got;
        size -= (size_t)got;
    }
    return NULL;
}

/* Wait for the next message; NULL, or why there is none. */
static const char *receive_answer(int stream, struct answer *answer) {
    static char text[96];
    unsigned char head[LENGTH_BYTES];
    const char *wrong = receive(stream, (char *)head, sizeof head, "header");
    if (wrong) return wrong;
    uint32_t size = head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 24;
    if (size > MAX_FRAME) {
        snprintf(text, sizeof text, "frame of %u bytes is above the limit of %d", size, MAX_FRAME);
        return text;
    }
    char *data = malloc((size_t)size + 1);
    if (!data) return error_text(ENOMEM);
    wrong = receive(stream, data, size, "payload");
    return wrong ? wrong : read_answer(data, size, answer);
}

static int is_private(const char *entry, size_t length) {
    for (size_t i = 0; i < sizeof PRIVATE_VARIABLES / sizeof *PRIVATE_VARIABLES; i++)
        if (strlen(PRIVATE_VARIABLES[i]) == length && !strncmp(PRIVATE_VARIABLES[i], entry, length)) return 1;
    return 0;
}

/* Put the text of the request into a frame. */
static int write_request(struct buffer *frame, int argc, char **argv) {
    char *workdir = getcwd(NULL, 0);
    const char *between = "";
    if (!workdir) return -1;
    append(frame, "\0\0\0\0{\"file\":", LENGTH_BYTES + 8);
    append_quoted(frame, argv[0], strlen(argv[0]));
    append_text(frame, ",\"argv\":[");
    for (int i = 1; i < argc; i++, between = ",") {
        append_text(frame, between);
        append_quoted(frame, argv[i], strlen(argv[i]));
    }
    append_text(frame, "],\"workdir\":");
    append_quoted(frame, workdir, strlen(workdir));
    append_text(frame, ",\"env\":{");
    between = "";
    for (char **entry = environ; *entry; entry++) {
        char *value = strchr(*entry, '=');
        if (!value || is_private(*entry, (size_t)(value - *entry))) continue;
        append_text(frame, between);
        append_quoted(frame, *entry, (size_t)(value - *entry));
        append_text(frame, ":");
        append_quoted(frame, value + 1, strlen(value + 1));
        between = ",";
    }
    append_text(frame, "}}");
    return 0;
}

static int by_number(const void *one, const void *other) { return *(const int *)one - *(const int *)other; }

/* Find the descriptors the program would have, the lowest first; returns their number. */
static size_t open_descriptors(int *found, int escalate, int stream) {
    static int numbers[4096];
    const size_t most = sizeof numbers / sizeof *numbers;
    size_t seen = 0, count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder) {
        for (struct dirent *each; seen < most && (each = readdir(folder));)
            if (each->d_name[0] != '.') numbers[seen++] = atoi(each->d_name);
        closedir(folder);
    } else
        while (seen < MOST_NUMBERS) numbers[seen] = (int)seen, seen++;
    qsort(numbers, seen, sizeof *numbers, by_number);
    for (size_t i = 0; i < seen && count < MOST_DESCRIPTORS; i++) {
        int flags = numbers[i] == escalate || numbers[i] == stream ? -1 : fcntl(numbers[i], F_GETFD);
        if (flags >= 0 && !(flags & FD_CLOEXEC)) found[count++] = numbers[i];
    }
    return count;
}

/* Block what can be caught, except what is blocked or ignored by now; returns a descriptor to read it from. */
static int take_signals(void) {
    sigset_t blocked, taken;
    sigfillset(&taken);
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    for (int number = 1; number <= SIGRTMAX; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) || action.sa_handler == SIG_IGN || sigismember(&blocked, number))
            sigdelset(&taken, number);
    }
    int signals = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals >= 0) sigprocmask(SIG_BLOCK, &taken, NULL);
    return signals;
}

/* Pass one signal on; one that cannot be passed on is nobody's, since the other end is gone. */
static void pass_on(int stream, int signals) {
    struct signalfd_siginfo info;
    struct buffer frame = {0};
    char text[64];
    if (read(signals, &info, sizeof info) != sizeof info) return;
    if (info.ssi_signo == SIGCHLD && info.ssi_code > 0) return; /* of a child from before this program */
    snprintf(text, sizeof text, "{\"signal\":%u}", info.ssi_signo);
    append(&frame, "\0\0\0\0", LENGTH_BYTES);
    append_text(&frame, text);
    send_frame(stream, &frame, NULL, 0);
    free(frame.data);
}

/* Wait until the other end says something, and pass signals on meanwhile. */
static void await_answer(int stream, int signals) {
    struct pollfd each[] = {{stream, POLLIN, 0}, {signals, POLLIN, 0}};
    while (!each[0].revents) {
        if (poll(each, 2, -1) < 0) continue;
        if (each[1].revents && !each[0].revents) pass_on(stream, signals);
    }
}

/* End as the program did. */
static int end_by(long signal_number, int code) {
    struct rlimit none = {0, 0};
    sigset_t only;
    if (signal_number < 1 || signal_number > SIGRTMAX || signal_number == SIGSTOP) return code;
    setrlimit(RLIMIT_CORE, &none);
    signal((int)signal_number, SIG_DFL);
    sigemptyset(&only);
    sigaddset(&only, (int)signal_number);
    raise((int)signal_number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    return code;
}

/* Give the descriptors away and wait for the end of what runs with them. */
static int let_run(int escalate, int stream, int takes_signals) {
    struct buffer frame = {0};
    struct answer answer = {0};
    int found[MOST_DESCRIPTORS];
    size_t count = open_descriptors(found, escalate, stream);
    int signals = takes_signals ? take_signals() : -1; /* before the program may begin, and counted nowhere */
    append(&frame, "\0\0\0\0{\"fds\":[", LENGTH_BYTES + 8);
    for (size_t i = 0; i < count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%s%d", i ? "," : "", found[i]);
        append_text(&frame, number);
    }
    append_text(&frame, signals < 0 ? "]}" : "],\"signals\":true}");
    if (send_frame(stream, &frame, found, count)) return fail(error_text(errno), NULL);
    /* Whoever reads their other ends waits for the program only; stderr is kept for what may have to be said. */
    for (size_t i = 0; i < count; i++)
        if (found[i] != 2) close(found[i]);
    if (signals >= 0) await_answer(stream, signals);
    const char *wrong = receive_answer(stream, &answer);
    if (!wrong && !answer.has_code) wrong = "missing field `exit_code`";
    return wrong ? fail(NO_RESULT, wrong) : end_by(signals < 0 ? 0 : answer.signal, (int)(answer.code & 0xff));
}

static int become(char **argv, int argc) {
    char *nameless[] = {"", NULL};
    execve(argv[0], argc > 1 ? argv + 1 : nameless, environ);
    return fail(error_text(errno), NULL);
}

/* `argv` are FILE and the program's arguments. */
static int ask(int argc, char **argv) {
    struct buffer frame = {0};
    struct answer answer = {0};
    char text[512];
    int pair[2], escalate = socket_number();
    if (escalate < 0) return FAILED;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return fail(error_text(errno), NULL);
    if (send_rights(escalate, "", 1, &pair[1], 1) < 0)
        return fail("failed to send handshake datagram", error_text(errno));
    close(pair[1]);
    if (write_request(&frame, argc, argv) || send_frame(pair[0], &frame, NULL, 0))
        return fail(error_text(errno), NULL);
    const char *wrong = receive_answer(pair[0], &answer);
    if (wrong) return fail(NO_ANSWER, wrong);
    if (!answer.action) return fail(NO_ANSWER, "missing field `action`");
    if (!strcmp(answer.action, "Run")) return become(argv, argc);
    if (!strcmp(answer.action, "Escalate")) return let_run(escalate, pair[0], answer.takes_signals);
    if (!strcmp(answer.action, "Deny")) {
        dprintf(2, answer.reason ? "Execution denied: %s\n" : "Execution denied\n", answer.reason);
        return FAILED;
    }
    snprintf(text, sizeof text, "unknown variant `%.200s`, expected one of `Run`, `Escalate`, `Deny`", answer.action);
    return fail(NO_ANSWER, text);
}

int is_wrapper(int argc, char **argv) {
    const char *name = argc ? strrchr(argv[0], '/') : NULL;
    return argc && !strcmp(name ? name + 1 : argv[0], "codex-execve-wrapper");
}

int be_wrapper(int argc, char **argv) {
    int first = 1;
    if (argc > 1 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
        dprintf(1, "%s\nArguments:\n  <FILE>     \n  [ARGV]...  \n\nOptions:\n  -h, --help  Print help\n", USAGE_LINE);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "--")) first = 2;
    if (argc <= first) return wrong_usage(NULL);
    if (first == 1 && argv[1][0] == '-' && argv[1][1]) return wrong_usage(argv[1]);
    return ask(argc - first, argv + first);
}
