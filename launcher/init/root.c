/* Plays the calls of a recorded sandbox root, as rootfs/recorded.py does, and what is no call in it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

#include "init.h"
#include "kernel.h"
#include "watch.h"

enum { PATH_BENEATH = 1 };

static int check_device(int opened) {
    struct stat found;
    return !CALL(SYS_fstat, opened, &found) && S_ISCHR(found.st_mode);
}

static int check_identity(int opened, uint64_t device, uint64_t inode, uint64_t type) {
    struct stat found;
    return !CALL(SYS_fstat, opened, &found) && found.st_dev == device && found.st_ino == inode &&
           (found.st_mode & S_IFMT) == type;
}

/* No /proc here, or a file system of the kernel's own, which Landlock leaves alone. */
static int needs_no_rule(long result) { return result == -ENOENT || result == -EACCES || result == -EBADFD; }

/* Grant writing to one terminal or file of stdio, as landlock_rules.py has it. */
static int allow_one(int ruleset, int number, uint64_t rights, uint64_t pipes) {
    char path[] = "/proc/self/fd/0";
    struct stat found;
    if (CALL(SYS_fstat, number, &found)) return 0;
    if (found.st_dev == pipes || S_ISSOCK(found.st_mode)) return 1;
    long mode = CALL(SYS_fcntl, number, F_GETFL);
    if (mode < 0) return 0;
    if ((mode & O_ACCMODE) == O_RDONLY) return 1;
    path[sizeof path - 2] = (char)('0' + number);
    long opened = CALL(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC);
    if (opened < 0) return needs_no_rule(opened);
    struct {
        uint64_t rights;
        int32_t opened;
    } __attribute__((packed)) rule = {rights, (int32_t)opened};
    long result = CALL(SYS_landlock_add_rule, ruleset, PATH_BENEATH, &rule, 0);
    CALL(SYS_close, opened);
    return !result || needs_no_rule(result);
}

static int allow_stdio(int ruleset, int report, uint64_t rights) {
    struct stat pipe;
    if (CALL(SYS_fstat, report, &pipe)) return 0;
    for (int number = 0; number < 3; number++)
        if (!allow_one(ruleset, number, rights, pipe.st_dev)) return 0;
    return 1;
}

static int play_step(const struct step *step, const struct start *start) {
    const uint64_t *with = step->arguments;
    long result;
    switch (step->kind) {
    case TO_RESULT:
    case TO_ANY:
        result = call6(step->number, (long)with[0], (long)with[1], (long)with[2], (long)with[3], (long)with[4],
                       (long)with[5]);
        return step->kind == TO_ANY || result == step->expected;
    case SESSION:
        return CALL(SYS_setsid) >= 0;
    case DEVICE:
        return check_device((int)with[0]);
    case IDENTITY:
        return check_identity((int)with[0], with[1], with[2], with[3]);
    case COVER:
        return with[0] < start->covers && check_identity((int)with[1], start->identities[with[0]].device,
                                                         start->identities[with[0]].inode,
                                                         start->identities[with[0]].type);
    case STDIO:
        return allow_stdio((int)with[0], (int)with[1], with[2]);
    case FILTER:
        return install((const struct instruction *)with[0], with[1], 0) == 0;
    default:
        return 0;
    }
}

int play(const struct plan *plan, int part, const struct start *start) {
    size_t count;
    const struct step *step = part_of(plan, part, &count);
    for (; count; count--)
        if (!play_step(step++, start)) return 0;
    return 1;
}

int enter_root(const struct plan *plan, const struct start *start) {
    if (!play(plan, FIRST, start)) return 0;
    long mask = CALL(SYS_umask, 0); /* every recorded mode is given in full */
    int is_built = play(plan, BEGIN, start) && play(plan, BODY, start) &&
                   (!slave_path[0] || play(plan, CONSOLE, start)) &&
                   (!start->covers || play(plan, COVERS, start)) && play(plan, END, start);
    CALL(SYS_umask, mask);
    return is_built;
}
