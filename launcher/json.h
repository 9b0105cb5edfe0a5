/* As much JSON as the wrapper needs: making strings, and reading the answers to it. */
#ifndef JSON_H
#define JSON_H

#include <stddef.h>

/* Bytes that grow; `data` is NULL for ever once there was no memory. */
struct buffer {
    char *data;
    size_t size, room;
    int is_lost;
};

void append(struct buffer *buffer, const char *data, size_t size);
void append_text(struct buffer *buffer, const char *text);

/* Return how many bytes the UTF-8 character at the start takes, 0 if there is none. */
size_t character(const unsigned char *at, size_t left);

/* Append a JSON string; bytes that are no UTF-8 become escapes of single surrogates. */
void append_quoted(struct buffer *buffer, const char *data, size_t size);

/* What an answer said; what it left out is NULL or 0. */
struct answer {
    char *action, *reason;
    int has_code, takes_signals;
    long code, signal;
};

/* Read an answer, in which strings are decoded in place; NULL, or what is wrong with it.
 * There has to be room for one byte more than `size`. */
const char *read_answer(char *data, size_t size, struct answer *answer);

#endif
