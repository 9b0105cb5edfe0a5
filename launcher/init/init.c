/* One start, from its descriptors to its end.  The order and the reports are those of sandbox_init.py. */
#define _GNU_SOURCE
#include "init.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "kernel.h"
#include "watch.h"

enum { FROM_KERNEL = 0x80, RESERVE = 2048, MOST_FILES = 1 << 20, NOT_PREPARED = 1 };

struct told { /* a report: `E` or `L`, a wait status in the byte order of this machine */
    char word;
    int32_t status;
} __attribute__((packed));

char slave_path[SLAVE_BYTES];

/* Report that something is not as recorded, while nothing runs yet: Python then carries out this start. */
static _Noreturn void give_up(int report) {
    CALL(SYS_write, report, "U", 1);
    leave(NOT_PREPARED);
}

static int put(int descriptor, int number) {
    /* Onto itself it would stay close-on-exec. */
    if (descriptor == number) return !CALL(SYS_fcntl, number, F_SETFD, 0);
    return CALL(SYS_dup3, descriptor, number, 0) == number;
}

static int open_null(int number) {
    int null = (int)CALL(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC);
    int is_put = null >= 0 && put(null, number);
    if (null >= 0 && null != number) CALL(SYS_close, null);
    return is_put;
}

/* Put stdio in place; `given` are stdin (or not), stdout and stderr, or the terminal alone. */
static int take_stdio(const struct start *start, const int *given) {
    if (slave_path[0]) return put(given[0], 0) && put(given[0], 1) && put(given[0], 2);
    if (!(start->has_stdin ? put(*given++, 0) : open_null(0))) return 0;
    return put(given[0], 1) && put(given[1], 2);
}

static int lower(int kind, uint64_t soft, uint64_t hard) {
    struct {
        uint64_t soft, hard;
    } now, fresh;
    if (CALL(SYS_prlimit64, 0, kind, NULL, &now)) return 0;
    fresh.soft = soft < now.hard ? soft : now.hard; /* without a limit it is the highest number */
    fresh.hard = hard < now.hard ? hard : now.hard;
    return !CALL(SYS_prlimit64, 0, kind, &fresh, NULL);
}

/* Leave some open files to others of this user, as kernel/limits.py says. */
static int leave_descriptors(void) {
    struct {
        uint64_t soft, hard;
    } limit;
    if (CALL(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit)) return 0;
    uint64_t hard = limit.hard == ~(uint64_t)0 ? MOST_FILES : limit.hard;
    limit.hard = hard - (hard / 4 < RESERVE ? hard / 4 : RESERVE);
    if (limit.soft > limit.hard) limit.soft = limit.hard;
    return !CALL(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, NULL);
}

static int take_limits(const struct start *start) {
    return leave_descriptors() &&
           (start->cpu_s < 0 || lower(RLIMIT_CPU, (uint64_t)start->cpu_s, (uint64_t)start->cpu_s + 1)) &&
           (start->file_bytes < 0 ||
            lower(RLIMIT_FSIZE, (uint64_t)start->file_bytes, (uint64_t)start->file_bytes)) &&
           (start->open_files < 0 ||
            lower(RLIMIT_NOFILE, (uint64_t)start->open_files, (uint64_t)start->open_files));
}

/* Pass on a signal that reached this process and should have reached the command, too. */
static void pass_on(const siginfo_t *info, long command) {
    if (info->si_code == FROM_KERNEL) {
        if (info->si_signo != SIGHUP) return;
        /* The terminal is gone, and the kernel tells the session leader alone. */
        if (!CALL(SYS_kill, command, SIGHUP)) CALL(SYS_kill, command, SIGCONT);
        return;
    }
    /* From outside, where senders have no pid here: to the group, which a shell with job control has left. */
    long group = CALL(SYS_getpgid, command);
    if (!info->si_pid && group > 0 && group != CALL(SYS_getpgid, 0)) CALL(SYS_kill, -group, info->si_signo);
}

/* Reap everything that ends until the command does; its wait status. */
static int reap_until(long command) {
    uint64_t awaited = ~(uint64_t)0;
    static const int faults[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGKILL, SIGSTOP, 32, 33};
    siginfo_t info;
    int status;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) awaited &= ~((uint64_t)1 << (faults[i] - 1));
    /* All signals are blocked: one that comes between the two calls stays pending. */
    for (;;) {
        long pid = CALL(SYS_wait4, -1, &status, WNOHANG, NULL);
        if (pid == command) return status;
        if (pid < 0) leave(NOT_PREPARED);
        if (!pid && CALL(SYS_rt_sigtimedwait, &awaited, &info, NULL, sizeof awaited) > 0 && info.si_signo != SIGCHLD)
            pass_on(&info, command);
    }
}

/* Reap what has ended; whether any process of the namespace is left. */
static int are_others_left(void) {
    long pid;
    do pid = CALL(SYS_wait4, -1, NULL, WNOHANG, NULL);
    while (pid > 0);
    return !pid;
}

/* Tell the supervisor that the command has ended and others have not, and reap those until it kills this process. */
static void stay_for_others(int status) {
    struct told left = {'L', status};
    uint64_t child = (uint64_t)1 << (SIGCHLD - 1);
    if (!are_others_left()) return;
    CALL(SYS_write, REPORT, &left, sizeof left);
    while (are_others_left()) CALL(SYS_rt_sigtimedwait, &child, NULL, NULL, sizeof child);
}

/* Enter the root with no descriptors but stdio, the report and KEPT; 0 if something was not as recorded. */
static int enter(const struct start *start, const struct plan *plan, const int *descriptors, int *report) {
    if (!play(plan, TIE, start) || !take_stdio(start, descriptors + 1)) return 0;
    if (CALL(SYS_dup3, *report, REPORT, O_CLOEXEC) != REPORT) return 0;
    *report = REPORT;
    /* What came has higher numbers: that of the socket is 3. */
    if (is_watching() && CALL(SYS_dup3, descriptors[3 + start->has_stdin], KEPT, O_CLOEXEC) != KEPT) return 0;
    if (!enter_root(plan, start)) return 0;
    /* The null device of the root: the one opened outside is a file of another root. */
    if (!start->has_stdin && !slave_path[0] && !open_null(0)) return 0;
    if (is_watching() && !watch_self()) return 0; /* before the limits, which may keep a descriptor from being sent */
    if (!take_limits(start)) return 0;
    /* Refused where it is another session's: an open would not make it the controlling one either.  Of one that
     * was hung up meanwhile nobody would tell the command. */
    return !slave_path[0] || CALL(SYS_ioctl, 0, TIOCSCTTY, 0) != -EIO;
}

_Noreturn void be_init(struct start *start, const struct plan *plan, const int *descriptors) {
    static char real[PATH_BYTES];
    struct texts texts;
    int report = descriptors[0];
    if (!read_texts(start, &texts)) leave(NOT_PREPARED);
    memcpy(slave_path, texts.slave, length_of(texts.slave) + 1);
    if (!enter_outside(texts.cwd, real) || !enter(start, plan, descriptors, &report)) give_up(report);
    long pid = start_command(&texts, real);
    /* Where nobody reads it, the start was given up: what runs ends with this process. */
    if (pid > 0 && CALL(SYS_write, REPORT, "R", 1) != 1) leave(NOT_PREPARED);
    /* The command has its stdio.  Copies here would keep the pipes open after it has closed its own. */
    for (int number = 0; number < 3; number++) CALL(SYS_close, number);
    if (is_watching()) CALL(SYS_close, KEPT);
    struct {
        char running;
        struct told told;
    } __attribute__((packed)) ended = {'R', {'E', 0}};
    if (pid > 0) {
        ended.told.status = reap_until(pid);
        if (is_watching()) stay_for_others(ended.told.status);
        CALL(SYS_write, REPORT, &ended.told, sizeof ended.told);
    } else {
        /* In one write, as a command that ended at once. */
        ended.told.status = (int32_t)-pid << 8;
        CALL(SYS_write, REPORT, &ended, sizeof ended);
    }
    leave(0);
}
