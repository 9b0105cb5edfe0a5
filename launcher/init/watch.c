/* What trap/install.py does in Python: the filter, and the listener on its way to the supervisor. */
#define _GNU_SOURCE
#include "watch.h"

#include <sys/socket.h>

#include "kernel.h"

enum { SET_MODE_FILTER = 1, MOST_INSTRUCTIONS = 256 };

static union {
    struct watch is;
    char room[sizeof(struct watch) + MOST_INSTRUCTIONS * sizeof(struct instruction)];
} watch;
static uint64_t count;

long install(const struct instruction *instructions, uint64_t how_many, uint64_t flags) {
    struct {
        uint16_t count;
        const struct instruction *instructions;
    } program = {(uint16_t)how_many, instructions};
    if (how_many > 0xffff) return -EINVAL;
    return CALL(SYS_seccomp, SET_MODE_FILTER, flags, &program);
}

int keep_watch(const struct watch *message) {
    size_t size = message->head.size;
    if (size <= sizeof *message || size > sizeof watch || (size - sizeof *message) % sizeof(struct instruction)) return 0;
    memcpy(&watch, message, size);
    count = (size - sizeof *message) / sizeof(struct instruction);
    return 1;
}

int is_watching(void) { return count > 0; }

static int send_listener(int listener) {
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr head;
    } control;
    char word = 'L';
    struct iovec piece = {&word, 1};
    struct msghdr whole = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    memset(&control, 0, sizeof control);
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.head), &listener, sizeof listener);
    return CALL(SYS_sendmsg, KEPT, &whole, MSG_NOSIGNAL) == 1;
}

int watch_self(void) {
    /* From here on an exec of this process's children waits until the supervisor, which gets the listener, answers. */
    long listener = install(watch.is.instructions, count, watch.is.flags);
    if (listener < 0) return 0;
    int is_sent = send_listener((int)listener);
    CALL(SYS_close, listener); /* who had it inside could answer the calls that it is there to hold */
    return is_sent;
}
