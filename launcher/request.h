/* File requests as they usually are: few members, in plain ASCII, and paths that mean themselves. */
#ifndef REQUEST_H
#define REQUEST_H

#include <limits.h>
#include <stddef.h>

/* Some characters of a request. */
struct slice {
    const char *at;
    size_t size;
};

enum { NOT_GIVEN = -1 }; /* of a flag; null says the same */

/* What is not in the request is empty: texts have no character, `content.at` is NULL, flags are NOT_GIVEN.
 * Of the paths those are there that the operation needs. */
struct request {
    char operation[24];
    char path[PATH_MAX], source[PATH_MAX], destination[PATH_MAX];
    struct slice content; /* not decoded */
    int recursive, force;
    int has_params; /* once: what the first ones said does not count */
};

/* Read a request; 0 where anything about it takes the other program to understand. */
int read_request(const char *data, size_t size, struct request *request);

/* Tell whether a path is its own normalised form; a name like that of a drive is none. */
int is_normal(const char *path);

/* Tell whether a byte of a path stands for itself in URIs. */
int is_plain(char letter);

#endif
