/* As much JSON as the wrapper needs.  Answers come from a server that is trusted with more than this process
 * is, but are read as if they did not: within their bounds, and nested no deeper than MOST_DEEP. */
#define _GNU_SOURCE
#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEEP = 32 };

static const char NO_JSON[] = "the message is no JSON", OTHER_TYPE[] = "invalid type: not an object",
                  OTHER_ACTION[] = "invalid type for the field `action`";

struct text {
    char *at, *end;
    int deep;
};

void append(struct buffer *buffer, const char *data, size_t size) {
    if (buffer->is_lost) return;
    if (buffer->room - buffer->size < size) {
        size_t room = (buffer->size + size) * 2 + 1024;
        char *grown = realloc(buffer->data, room);
        if (!grown) {
            buffer->data = NULL;
            buffer->is_lost = 1;
            return;
        }
        buffer->data = grown;
        buffer->room = room;
    }
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
}

void append_text(struct buffer *buffer, const char *text) { append(buffer, text, strlen(text)); }

size_t character(const unsigned char *at, size_t left) {
    size_t size = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
    if (!size || size > left) return 0;
    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if (at[0] == 0xe0 && at[1] < 0xa0) return 0;
    if (at[0] == 0xed && at[1] >= 0xa0) return 0; /* a surrogate */
    if (at[0] == 0xf0 && at[1] < 0x90) return 0;
    if (at[0] == 0xf4 && at[1] >= 0x90) return 0;
    return size;
}

void append_quoted(struct buffer *buffer, const char *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data, *end = at + size;
    char escape[8];
    append_text(buffer, "\"");
    while (at < end) {
        size_t whole = character(at, (size_t)(end - at));
        if (whole == 1 && (*at == '"' || *at == '\\')) {
            append_text(buffer, "\\");
            append(buffer, (const char *)at, 1);
        } else if (!whole || *at < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", whole ? *at : 0xdc00 + *at);
            append(buffer, escape, 6);
            whole = 1;
        } else
            append(buffer, (const char *)at, whole);
        at += whole;
    }
    append_text(buffer, "\"");
}

static int next(struct text *text) {
    while (text->at < text->end && strchr(" \t\n\r", *text->at) && *text->at) text->at++;
    return text->at < text->end ? (unsigned char)*text->at : -1;
}

static int take(struct text *text, int wanted) {
    if (next(text) != wanted) return 0;
    text->at++;
    return 1;
}

static int take_word(struct text *text, const char *word) {
    size_t size = strlen(word);
    next(text);
    if ((size_t)(text->end - text->at) < size || memcmp(text->at, word, size)) return 0;
    text->at += size;
    return 1;
}

/* Read four digits of an escape; -1 if they are none. */
static long hexadecimal(struct text *text) {
    long value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", *found;
        if (text->at >= text->end) return -1;
        int letter = *text->at++;
        if (letter >= 'A' && letter <= 'F') letter += 'a' - 'A';
        if (!letter || !(found = strchr(digits, letter))) return -1;
        value = value * 16 + (found - digits);
    }
    return value;
}

static char *encode(char *to, long code) {
    if (code < 0x80) *to++ = (char)code;
    else if (code >= 0xdc80 && code <= 0xdcff) *to++ = (char)(code - 0xdc00); /* a byte that is no UTF-8 */
    else if (code < 0x800) *to++ = (char)(0xc0 | code >> 6), *to++ = (char)(0x80 | (code & 0x3f));
    else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    }
    return to;
}

static long escaped_code(struct text *text) {
    long code = hexadecimal(text);
    if (code < 0xd800 || code > 0xdbff) return code;
    if (text->end - text->at < 2 || text->at[0] != '\\' || text->at[1] != 'u') return -1;
    text->at += 2;
    long low = hexadecimal(text);
    return low < 0xdc00 || low > 0xdfff ? -1 : 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
}

/* Decode a string in place, where it never gets longer; NULL if there is none. */
static char *string(struct text *text) {
    static const char LETTERS[] = "\"\\/bfnrt", MEANT[] = "\"\\/\b\f\n\r\t";
    if (!take(text, '"')) return NULL;
    char *start = text->at, *to = start;
    while (text->at < text->end) {
        unsigned char letter = (unsigned char)*text->at++;
        if (letter == '"') {
            *to = 0;
            return start;
        }
        if (letter < 0x20) return NULL;
        if (letter != '\\') {
            *to++ = (char)letter;
            continue;
        }
        if (text->at >= text->end) return NULL;
        const char *found = *text->at ? strchr(LETTERS, *text->at) : NULL;
        if (found) {
            *to++ = MEANT[found - LETTERS];
            text->at++;
        } else {
            long code = *text->at++ == 'u' ? escaped_code(text) : -1;
            if (code <= 0) return NULL; /* nor a NUL, which no program could be given */
            to = encode(to, code);
        }
    }
    return NULL;
}

static int skip_value(struct text *text);

/* Read the members of an object or array, the values by `each`; 0 if that is none. */
static int members(struct text *text, int open, int close, int (*each)(struct text *, char *, void *), void *into) {
    if (text->deep++ >= MOST_DEEP || !take(text, open)) return 0;
    for (int is_first = 1; !(is_first && take(text, close)); is_first = 0) {
        char *name = open == '{' ? string(text) : NULL;
        if (open == '{' && (!name || !take(text, ':'))) return 0;
        if (!(each ? each(text, name, into) : skip_value(text))) return 0;
        if (take(text, close)) break;
        if (!take(text, ',')) return 0;
    }
    text->deep--;
    return 1;
}

static int skip_value(struct text *text) {
    int first = next(text);
    if (first == '{') return members(text, '{', '}', NULL, NULL);
    if (first == '[') return members(text, '[', ']', NULL, NULL);
    if (first == '"') return string(text) != NULL;
    if (take_word(text, "null") || take_word(text, "true") || take_word(text, "false")) return 1;
    char *start = text->at;
    while (text->at < text->end && *text->at && strchr("+-.0123456789eE", *text->at)) text->at++;
    return text->at > start;
}

static int deny_member(struct text *text, char *name, void *into) {
    struct answer *answer = into;
    if (strcmp(name, "reason") || next(text) != '"') return skip_value(text);
    return (answer->reason = string(text)) != NULL;
}

static int action_member(struct text *text, char *name, void *into) {
    struct answer *answer = into;
    answer->action = name;
    return strcmp(name, "Deny") ? skip_value(text) : members(text, '{', '}', deny_member, answer);
}

static int answer_member(struct text *text, char *name, void *into) {
    struct answer *answer = into;
    if (!strcmp(name, "exit_code")) {
        next(text);
        char *start = text->at;
        answer->code = strtol(start, NULL, 10); /* it ends before what follows the number */
        answer->has_code = skip_value(text) && (*start == '-' || (*start >= '0' && *start <= '9'));
        return answer->has_code;
    }
    if (!strcmp(name, "signals")) {
        next(text);
        answer->takes_signals = *text->at == 't';
        return skip_value(text);
    }
    if (!strcmp(name, "signal")) {
        next(text);
        answer->signal = strtol(text->at, NULL, 10);
        return skip_value(text);
    }
    if (strcmp(name, "action")) return skip_value(text);
    if (next(text) == '{') return members(text, '{', '}', action_member, answer);
    answer->action = string(text);
    return answer->action && strcmp(answer->action, "Deny"); /* which says more than its name */
}

const char *read_answer(char *data, size_t size, struct answer *answer) {
    struct text text = {data, data + size, 0};
    data[size] = 0;
    if (next(&text) != '{') return next(&text) < 0 ? NO_JSON : OTHER_TYPE;
    if (!members(&text, '{', '}', answer_member, answer))
        return answer->action && !strcmp(answer->action, "Deny") && !answer->reason ? OTHER_ACTION : NO_JSON;
    return next(&text) < 0 ? NULL : NO_JSON;
}
