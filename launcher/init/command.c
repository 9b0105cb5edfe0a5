/* The command: its folder, its environment, which file its name means, and what is said when there is none. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>

#include "init.h"
#include "kernel.h"

enum { NOT_PREPARED = 1, NOT_EXECUTED = 101, STACK_BYTES = 16 * 1024 };

static const char COMPLAINT[] = "codex-linux-sandbox: ";

/* What the child needs that becomes the program. */
static struct {
    const char *path;
    char **arguments, **variables;
    long failure;
} beginning;
static char stack[STACK_BYTES] __attribute__((aligned(16)));

/* Write a message in the contract's form to stderr: pieces up to a null pointer. */
static void complain(const char *const *pieces) {
    static char line[MOST_BYTES + 256];
    size_t size = 0;
    for (; *pieces; pieces++)
        for (const char *at = *pieces; *at && size < sizeof line; at++) line[size++] = *at;
    CALL(SYS_write, 2, line, size);
}

static int enters(const char *folder) { return !CALL(SYS_chdir, folder); }

int enter_outside(const char *cwd, char real[PATH_BYTES]) {
    long size = enters(cwd) ? CALL(SYS_getcwd, real, PATH_BYTES) : -ENOENT;
    if (size > 0 && real[0] == '/') return 1;
    if (size == -ERANGE || size == -ENAMETOOLONG || length_of(cwd) >= PATH_BYTES) return 0;
    memcpy(real, cwd, length_of(cwd) + 1);
    return 1;
}

static int is_same(const char *one, const char *other) { return begins_with(one, other) && !one[length_of(other)]; }

/* Put `PWD=place` in the place of every PWD, behind all others; the list has room for it. */
static void change_workdir(char **variables, const char *place) {
    static char variable[sizeof "PWD=" + PATH_BYTES] = "PWD=";
    char **to = variables;
    for (char **from = variables; *from; from++)
        if (!begins_with(*from, "PWD=")) *to++ = *from;
    memcpy(variable + 4, place, length_of(place) + 1);
    *to++ = variable;
    *to = NULL;
}

static const char *home_in(char **variables) {
    for (; *variables; variables++)
        if (begins_with(*variables, "HOME=")) return *variables + 5;
    return "";
}

/* Enter the working directory in the root, or another that is there; 0, or minus the errno. */
static long enter_workdir(struct texts *texts, const char *real) {
    if (!is_same(real, texts->cwd)) return enters(real) ? 0 : CALL(SYS_chdir, texts->cwd); /* or where the link leads */
    if (enters(texts->cwd)) return 0;
    const char *home = home_in(texts->variables);
    const char *place = *home && enters(home) ? home : "/";
    long result = place[0] == '/' && !place[1] ? CALL(SYS_chdir, "/") : 0;
    if (!result) change_workdir(texts->variables, place);
    return result;
}

static void become_program(void) {
    uint64_t none = 0;
    CALL(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none); /* the handlers are the defaults already */
    beginning.failure = CALL(SYS_execve, beginning.path, beginning.arguments, beginning.variables);
    leave(127);
}

/* Start a program; its pid, or minus the errno. */
static long spawn(const char *path, const struct texts *texts) {
    beginning.path = path, beginning.failure = 0;
    beginning.arguments = texts->arguments, beginning.variables = texts->variables;
    long pid = run_beside(CLONE_VM | CLONE_VFORK | SIGCHLD, stack + sizeof stack, become_program);
    if (pid <= 0 || !beginning.failure) return pid;
    CALL(SYS_wait4, pid, NULL, 0, NULL);
    return beginning.failure;
}

/* Start the first file that execvp would; its pid, or minus the errno. */
static long spawn_first(const struct texts *texts) {
    long last = -ENOENT, refused = 0;
    struct stat found;
    for (char **path = texts->candidates; *path; path++) {
        long result = CALL(SYS_newfstatat, AT_FDCWD, *path, &found, 0);
        if (!result) result = spawn(*path, texts);
        if (result > 0) return result;
        if (result != -ENOENT && result != -ENOTDIR && result != -EACCES) return result;
        last = result;
        if (result == -EACCES) refused = result;
    }
    return refused ? refused : last;
}

/* Write a number below 1000 and what closes it. */
static void write_number(char *at, long number) {
    if (number >= 100) *at++ = (char)('0' + number / 100 % 10);
    if (number >= 10) *at++ = (char)('0' + number / 10 % 10);
    *at++ = (char)('0' + number % 10);
    memcpy(at, ")\n", sizeof ")\n");
}

long start_command(struct texts *texts, const char *real) {
    long failure = enter_workdir(texts, real);
    if (failure) {
        const char *pieces[] = {COMPLAINT, "Can't chdir to ", real, ": ", error_text(-failure), "\n", NULL};
        return complain(pieces), -NOT_PREPARED;
    }
    long pid = spawn_first(texts);
    if (pid > 0) return pid;
    char number[] = " (os error 000)\n";
    write_number(number + sizeof " (os error " - 1, -pid);
    const char *pieces[] = {COMPLAINT, "Failed to execvp ", texts->program, ": ", error_text(-pid), number, NULL};
    return complain(pieces), -NOT_EXECUTED;
}
