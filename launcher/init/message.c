/* Every check of what the zygote sends: only it writes here, but a mistake must end in nothing that runs. */
#define _GNU_SOURCE
#include "message.h"

#include <sched.h>

static const uint64_t NEEDED = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID;
static const uint64_t NAMESPACES =
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET;

static union {
    struct hello hello;
    char bytes[MOST_BYTES];
} errors;
static const char *error_texts[ERRORS];

static char *strings[MOST_STRINGS + 3]; /* and the ends of three lists */

int is_message(const void *data, size_t size) {
    const struct head *head = data;
    return size >= sizeof *head && size <= MOST_BYTES && head->size == size;
}

const struct step *part_of(const struct plan *plan, int part, size_t *count) {
    size_t before = 0;
    for (int i = 0; i < part; i++) before += plan->counts[i];
    *count = plan->counts[part];
    return plan->steps + before;
}

static int prepare_step(struct step *step, const struct plan *plan, char *data, int part, const char *slave) {
    if (step->kind >= STEP_KINDS || step->pointers >> 14 || (step->pointers & 0xc0)) return 0;
    if (step->kind == FILTER &&
        (step->pointers != 1 || step->arguments[1] > plan->data_size / sizeof(struct instruction) ||
         step->arguments[0] + step->arguments[1] * sizeof(struct instruction) > plan->data_size))
        return 0;
    if (step->kind == COVER && (part != COVERS || step->arguments[0] >= plan->covers)) return 0;
    for (int i = 0; i < 6; i++) {
        int is_slave = step->pointers >> (i + 8) & 1;
        if (is_slave && part != CONSOLE) return 0;
        if (is_slave) step->arguments[i] = (uintptr_t)slave;
        else if (step->pointers >> i & 1) {
            if (step->arguments[i] >= plan->data_size) return 0;
            step->arguments[i] += (uintptr_t)data;
        }
    }
    return 1;
}

int prepare_plan(struct plan *plan, const char *slave) {
    uint64_t steps = 0;
    if (plan->head.size < sizeof *plan || plan->slot >= MOST_PLANS || !plan->number || plan->covers > MOST_COVERS)
        return 0;
    for (int part = 0; part < PARTS; part++) steps += plan->counts[part];
    if (sizeof *plan + steps * sizeof(struct step) + plan->data_size != plan->head.size || !plan->data_size) return 0;
    char *data = (char *)(plan->steps + steps);
    if (data[plan->data_size - 1]) return 0;
    struct step *step = plan->steps;
    for (int part = 0; part < PARTS; part++)
        for (uint32_t i = 0; i < plan->counts[part]; i++)
            if (!prepare_step(step++, plan, data, part, slave)) return 0;
    return 1;
}

int are_namespaces(uint64_t flags) { return !(flags & ~NAMESPACES) && (flags & NEEDED) == NEEDED; }

int fits(const struct start *start, const struct plan *plan, size_t descriptors) {
    const char *texts = (const char *)(start->identities + start->covers);
    if (start->head.size < sizeof *start || start->slot >= MOST_PLANS || start->has_stdin > 1) return 0;
    if (!plan->number || plan->number != start->plan) return 0;
    if (!are_namespaces(start->flags)) return 0;
    if (start->covers > MOST_COVERS || (start->covers && start->covers != plan->covers)) return 0;
    /* A cwd, a slave and a program, at the least the bytes that end them. */
    if ((size_t)(texts - (const char *)start) + 3 > start->head.size) return 0;
    while (*texts && texts < (const char *)start + start->head.size - 2) texts++; /* over the cwd, to the slave */
    size_t needed = texts[1] ? 2 : 3 + start->has_stdin;
    return descriptors == needed && !(texts[1] && start->has_stdin);
}

/* Take as many strings from `*at`, and end the list; where it begins, or NULL if they are not there. */
static char **take(char **at, const char *end, char ***into, size_t count) {
    char **list = *into;
    for (size_t i = 0; i < count; i++) {
        if (*at >= end) return NULL;
        *(*into)++ = *at;
        *at += length_of(*at) + 1;
    }
    return *(*into)++ = NULL, list;
}

int read_texts(struct start *start, struct texts *found) {
    char *at = (char *)(start->identities + start->covers), *end = (char *)start + start->head.size;
    char *single[4], **into = single;
    if (end <= at || end[-1]) return 0; /* then each string ends before it */
    if ((uint64_t)start->candidates + start->arguments + start->variables + 3 > MOST_STRINGS) return 0;
    if (!take(&at, end, &into, 3) || !start->arguments) return 0;
    found->cwd = single[0], found->slave = single[1], found->program = single[2];
    into = strings;
    found->candidates = take(&at, end, &into, start->candidates);
    found->arguments = found->candidates ? take(&at, end, &into, start->arguments) : NULL;
    found->variables = found->arguments ? take(&at, end, &into, start->variables) : NULL;
    return found->variables && at == end && length_of(found->slave) < SLAVE_BYTES;
}

int keep_errors(const struct hello *hello) {
    if (hello->head.size < sizeof *hello || hello->texts > ERRORS) return 0;
    memcpy(errors.bytes, hello, hello->head.size);
    char *at = (char *)(&errors.hello + 1), *end = errors.bytes + hello->head.size;
    if (end > at && end[-1]) return 0;
    for (uint32_t i = 0; i < hello->texts; i++) {
        if (at >= end) return 0;
        error_texts[i] = at;
        at += length_of(at) + 1;
    }
    return at == end;
}

const char *error_text(long number) {
    return number >= 0 && number < ERRORS && error_texts[number] ? error_texts[number] : "Unknown error";
}
