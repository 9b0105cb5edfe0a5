/* What the zygote sends: plans and starts, as datagrams.  compiled.py and compiled_template.py write them. */
#ifndef MESSAGE_H
#define MESSAGE_H

#include "kernel.h"

enum {
    MOST_BYTES = 64 * 1024, /* of a message */
    MOST_PLANS = 16,
    MOST_COVERS = 64,
    MOST_STRINGS = MOST_BYTES,
    PATH_BYTES = 4096,
    SLAVE_BYTES = 64,
    ERRORS = 134,
};

enum { HELLO = 1, PLAN, START, WATCH, SPARE };                           /* kinds of a message */
enum { TIE, FIRST, BEGIN, BODY, CONSOLE, COVERS, END, PARTS };           /* of a plan, in the order of its steps */
enum { TO_RESULT, TO_ANY, SESSION, DEVICE, IDENTITY, COVER, STDIO, FILTER, STEP_KINDS }; /* kinds of a step */

struct head {
    uint32_t kind, size; /* of the whole message */
};

struct hello {
    struct head head;
    uint32_t idle_ms, fresh_ms, quiet_ms, texts; /* the texts follow, each with its NUL, from errno 0 on */
};

struct step {
    uint16_t kind, pointers; /* bit N: argument N is a place in the data area; bit N + 8: it is the slave's path */
    uint32_t number;
    int64_t expected;
    uint64_t arguments[6];
};

struct plan {
    struct head head;
    uint64_t number; /* above 0, and no other plan has ever had it */
    uint32_t slot, covers, counts[PARTS], data_size;
    struct step steps[]; /* the data area follows, and ends with a NUL */
};

struct identity {
    uint64_t device, inode, type;
};

struct start {
    struct head head;
    uint64_t plan, flags;
    int64_t cpu_s, file_bytes, open_files; /* -1 for none */
    uint32_t slot, has_stdin, covers, candidates, arguments, variables;
    struct identity identities[]; /* of the covers; the strings follow, each with its NUL */
};

struct instruction { /* of a filter */
    uint16_t code;
    uint8_t jump_true, jump_false;
    uint32_t value;
};

struct watch {
    struct head head;
    uint64_t flags; /* for the listener */
    struct instruction instructions[];
};

struct spare_order {
    struct head head;
    uint64_t flags;
};

/* The strings of a start, in its message. */
struct texts {
    char *cwd, *slave, *program, **candidates, **arguments, **variables; /* lists end with a null pointer */
};

/* Tell whether `size` bytes are a message that is whole. */
int is_message(const void *data, size_t size);

/* Check a plan, and put addresses in the place of its places; 0 if it is malformed. */
int prepare_plan(struct plan *plan, const char *slave);

/* Tell whether clone flags are those of a sandbox. */
int are_namespaces(uint64_t flags);

/* Tell whether a start belongs to a plan, and has the descriptors that it needs. */
int fits(const struct start *start, const struct plan *plan, size_t descriptors);

/* Find the strings of a start; 0 if it is malformed. */
int read_texts(struct start *start, struct texts *found);

/* Keep the error texts of a hello; 0 if it is malformed. */
int keep_errors(const struct hello *hello);

/* Return the contract's text for an errno. */
const char *error_text(long number);

/* Return the steps of a part of a plan, and how many there are. */
const struct step *part_of(const struct plan *plan, int part, size_t *count);

#endif
