/* The filter template.  It leads to nothing but its socket, that of its spare and the mount table. */
#define _GNU_SOURCE
#include "template.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#include "init.h"
#include "kernel.h"
#include "message.h"
#include "watch.h"

enum { SOCKET = 3, ROOM = 8 /* for descriptors of a message */, SIGNALS = 64, KILL = 9, FILTERED = 2 };

static const char NAME[] = "execserver-view", SPARE_NAME[] = "execserver-next"; /* in lists of processes */

static union {
    struct head head;
    struct hello hello;
    struct plan plan;
    struct start start;
    struct watch watch;
    struct spare_order spare;
    char bytes[MOST_BYTES];
} message;

static struct {
    uint64_t order; /* in which they came */
    union {
        struct plan plan;
        char bytes[MOST_BYTES];
    } is;
} plans[MOST_PLANS];
static uint64_t plans_taken;

static struct {
    int socket; /* -1 while there is none */
    long pid;
    uint64_t flags, plans; /* what it was forked with */
    int64_t made_ms;
} spare = {.socket = -1};

static int is_supervisors; /* and not the zygote's: one start, which is watched */
static int mounts = -1; /* the mount table */
static int64_t idle_ms = 30000, fresh_ms = 10000, quiet_ms = 50;
static uint64_t due; /* the flags of the spare that is to be made once nothing else is to do; 0 for none */

static void name_process(const char *name) { CALL(SYS_prctl, PR_SET_NAME, name); }

static void close_all(const int *descriptors, size_t count) {
    for (size_t i = 0; i < count; i++) CALL(SYS_close, descriptors[i]);
}

/* Receive the next message; its size, 0 at the end, or minus the errno. */
static long receive(int from, int *descriptors, size_t *count) {
    union {
        char room[CMSG_SPACE(ROOM * sizeof(int))];
        struct cmsghdr head;
    } control;
    struct iovec piece = {message.bytes, sizeof message.bytes};
    struct msghdr whole = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    long size;
    do size = CALL(SYS_recvmsg, from, &whole, MSG_CMSG_CLOEXEC);
    while (size == -EINTR);
    *count = 0;
    if (size > 0 && whole.msg_controllen >= sizeof control.head && control.head.cmsg_type == SCM_RIGHTS)
        *count = (control.head.cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(descriptors, CMSG_DATA(&control.head), *count * sizeof(int));
    return whole.msg_flags & MSG_TRUNC ? -EMSGSIZE : size;
}

/* Send the message that is here, with descriptors; whether it was taken. */
static int pass_on(int to, const int *descriptors, size_t count) {
    union {
        char room[CMSG_SPACE(ROOM * sizeof(int))];
        struct cmsghdr head;
    } control;
    struct iovec piece = {message.bytes, message.head.size};
    struct msghdr whole = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.room};
    memset(&control, 0, sizeof control);
    whole.msg_controllen = CMSG_SPACE(count * sizeof(int));
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(&control.head), descriptors, count * sizeof(int));
    return CALL(SYS_sendmsg, to, &whole, MSG_NOSIGNAL) == (long)message.head.size;
}

static void answer(const void *data, size_t size) {
    struct iovec piece = {(void *)data, size};
    struct msghdr whole = {.msg_iov = &piece, .msg_iovlen = 1};
    if (CALL(SYS_sendmsg, SOCKET, &whole, MSG_NOSIGNAL) != (long)size) leave(1);
}

static int64_t now_ms(void) {
    struct timespec now = {0, 0};
    CALL(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Tell whether a mount has come or gone since the last question. */
static int are_changes(void) {
    struct pollfd table = {mounts, POLLPRI, 0};
    struct timespec none = {0, 0};
    return CALL(SYS_ppoll, &table, 1, &none, NULL, 0) != 0;
}

/* As a sibling: the zygote is the parent of the new process, reaps it, and its death ends it. */
static long fork_into(uint64_t flags) { return CALL(SYS_clone, flags | CLONE_PARENT, 0, 0, 0, 0); }

static void drop_spare(void) {
    if (spare.socket >= 0) CALL(SYS_close, spare.socket); /* which ends it */
    spare.socket = -1;
}

/* Tell whether the start that is here can be carried out; a watched one has its channel as the last descriptor. */
static int is_fit(size_t count) {
    const struct start *start = &message.start;
    if (is_supervisors != is_watching() || (is_supervisors && !count--)) return 0;
    return start->slot < MOST_PLANS && fits(start, &plans[start->slot].is.plan, count);
}

/* Be the init of the start that is here. */
static _Noreturn void become_init(const int *descriptors, size_t count) {
    struct start *start = &message.start;
    if (!is_fit(count)) leave(1);
    be_init(start, &plans[start->slot].is.plan, descriptors);
}

/* Wait for a start.  It has entered no root and looked at nothing that a start looks at. */
static _Noreturn void be_spare(int end) {
    int descriptors[ROOM];
    size_t count;
    CALL(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (CALL(SYS_dup3, end, SOCKET, O_CLOEXEC) < 0 || CALL(SYS_close_range, SOCKET + 1, ~0U, 0)) leave(1);
    name_process(SPARE_NAME);
    long size = receive(SOCKET, descriptors, &count);
    if (size <= 0) leave(0);
    if (!is_message(message.bytes, (size_t)size)) leave(1);
    name_process(NAME);
    become_init(descriptors, count);
}

static void make_spare(uint64_t flags) {
    int ends[2];
    drop_spare();
    if (mounts < 0) return;
    are_changes(); /* what comes from here on counts */
    if (CALL(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return;
    long pid = fork_into(flags);
    if (!pid) be_spare(ends[1]);
    CALL(SYS_close, ends[1]); /* else its end would not be seen here */
    spare.socket = ends[0], spare.pid = pid, spare.flags = flags, spare.plans = plans_taken, spare.made_ms = now_ms();
    if (pid < 0) drop_spare();
}

static void make_due_spare(void) {
    uint64_t flags = due;
    due = 0;
    make_spare(flags);
}

/* Tell whether this process has more than one processor. */
static int are_processors(void) {
    uint64_t mask[128] = {0};
    int is_one = 0;
    long size = CALL(SYS_sched_getaffinity, 0, sizeof mask, mask);
    for (long i = 0; i < size / 8; i++) {
        if (mask[i] & (mask[i] - 1) || (mask[i] && is_one)) return 1;
        is_one |= mask[i] != 0;
    }
    return 0;
}

/* Have the spare become the init of the start that is here; its pid, or 0 if it cannot be used. */
static long take_spare(const int *descriptors, size_t count) {
    int is_taken = spare.socket >= 0 && spare.flags == message.start.flags &&
                   plans[message.start.slot].order <= spare.plans && now_ms() - spare.made_ms < fresh_ms &&
                   !are_changes() && pass_on(spare.socket, descriptors, count);
    drop_spare(); /* what it was sent stays in its socket */
    return is_taken ? spare.pid : 0;
}

static void serve_start(const int *descriptors, size_t count) {
    struct start *start = &message.start;
    struct {
        int32_t pid, error;
    } told = {0, EINVAL};
    if (is_fit(count)) {
        long pid = take_spare(descriptors, count);
        if (!pid && !(pid = fork_into(start->flags))) become_init(descriptors, count);
        told.pid = pid > 0 ? (int32_t)pid : 0;
        told.error = pid > 0 ? 0 : (int32_t)-pid;
    }
    close_all(descriptors, count); /* those here would keep the report and the pipes from ending */
    answer(&told, sizeof told);
    if (is_supervisors) leave(0);
    uint64_t flags = start->flags;
    memset(message.bytes, 0, message.head.size); /* the next spare need not know this environment */
    if (!told.pid) return;
    due = flags;
    /* With one processor a spare that is made now delays the command, and saves nothing in a row of starts. */
    if (are_processors()) make_due_spare();
}

static void take_plan(void) {
    if (message.head.size < sizeof message.plan || message.plan.slot >= MOST_PLANS) leave(1);
    struct plan *plan = &plans[message.plan.slot].is.plan;
    memcpy(plan, message.bytes, message.head.size);
    plans[message.plan.slot].order = ++plans_taken;
    if (!prepare_plan(plan, slave_path)) leave(1);
}

static void take_hello(void) {
    if (!keep_errors(&message.hello)) leave(1);
    idle_ms = message.hello.idle_ms;
    fresh_ms = message.hello.fresh_ms;
    quiet_ms = message.hello.quiet_ms;
}

static void take_watch(void) {
    if (!is_supervisors || !keep_watch(&message.watch)) leave(1);
}

/* Fork a spare before the first start: of a supervisor that waits for one itself. */
static void take_spare_order(void) {
    if (message.head.size != sizeof message.spare || !are_namespaces(message.spare.flags)) leave(1);
    make_spare(message.spare.flags);
}

/* Nothing that is forked here installs a filter, so it must be there; and the zygote's end must end this. */
static int is_confined(void) {
    int signal = 0;
    CALL(SYS_prctl, PR_GET_PDEATHSIG, &signal);
    return signal == KILL && CALL(SYS_prctl, PR_GET_SECCOMP) == FILTERED &&
           CALL(SYS_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
}

static void begin(void) {
    const char nothing[32] = {0}; /* a kernel's sigaction: the default, whatever the interpreter ignored */
    CALL(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0); /* first of all: an exec has made it dumpable */
    name_process(NAME);
    for (int number = 0; number < SOCKET; number++)
        if (CALL(SYS_fcntl, number, F_GETFD) < 0) leave(1); /* what is received must not get these numbers */
    /* A supervisor that has ended before this has closed the socket, too. */
    if (is_supervisors) CALL(SYS_prctl, PR_SET_PDEATHSIG, KILL);
    else if (!is_confined()) leave(1);
    for (int number = 1; number <= SIGNALS; number++) CALL(SYS_rt_sigaction, number, nothing, NULL, 8);
    mounts = (int)CALL(SYS_openat, AT_FDCWD, "/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    answer("R", 1);
}

_Noreturn void be_template(const uintptr_t *words) {
    int descriptors[ROOM];
    size_t count;
    is_supervisors = words[0] > 1;
    begin();
    for (;;) {
        struct pollfd socket = {SOCKET, POLLIN, 0};
        int64_t patience_ms = due ? quiet_ms : idle_ms;
        struct timespec patience = {patience_ms / 1000, patience_ms % 1000 * 1000000};
        long ready = CALL(SYS_ppoll, &socket, 1, &patience, NULL, 0);
        if (ready == -EINTR) continue;
        if (!ready && due) {
            make_due_spare();
            continue;
        }
        long size = ready > 0 ? receive(SOCKET, descriptors, &count) : 0;
        if (!size || size == -ECONNRESET) leave(0);
        if (size < 0 || !is_message(message.bytes, (size_t)size)) leave(1);
        if (message.head.kind == START) serve_start(descriptors, count);
        else if (message.head.kind == PLAN) take_plan();
        else if (message.head.kind == HELLO) take_hello();
        else if (message.head.kind == WATCH) take_watch();
        else if (message.head.kind == SPARE) take_spare_order();
        else leave(1);
    }
}
