/* Reads requests of the usual form; any other one, right or wrong, is refused, not judged.
 * Of a member that comes twice the last one counts, as for the other program. */
#define _GNU_SOURCE
#include "request.h"

#include <string.h>

static int is(const struct slice *text, const char *word) {
    return text->size == strlen(word) && !memcmp(text->at, word, text->size);
}

static void skip(struct slice *rest, size_t size) {
    rest->at += size;
    rest->size -= size;
}

static int take(struct slice *rest, const char *word) {
    size_t size = strlen(word);
    while (rest->size && *rest->at && strchr(" \t\n\r", *rest->at)) skip(rest, 1);
    if (rest->size < size || memcmp(rest->at, word, size)) return 0;
    skip(rest, size);
    return 1;
}

/* Find a string of plain ASCII, without escapes; 0 if there is another one, or none. */
static int take_string(struct slice *rest, struct slice *found) {
    if (!take(rest, "\"")) return 0;
    for (size_t size = 0; size < rest->size; size++) {
        char letter = rest->at[size];
        if (letter == '"') {
            *found = (struct slice){rest->at, size};
            skip(rest, size + 1);
            return 1;
        }
        if (letter < 0x20 || letter > 0x7e || letter == '\\') return 0;
    }
    return 0;
}

int is_normal(const char *path) {
    size_t size = strlen(path);
    if (path[0] != '/' || strstr(path, "//")) return 0;
    if (size > 2 && (path[2] == ':' || path[2] == '|')) return 0; /* a drive */
    if (size > 1 && path[size - 1] == '/') return 0;
    for (const char *dot = path; (dot = strstr(dot, "/.")); dot += 2) {
        const char *behind = dot + (dot[2] == '.' ? 3 : 2);
        if (!*behind || *behind == '/') return 0;
    }
    return 1;
}

int is_plain(char letter) { /* as `_PLAIN` of protocol/paths.py */
    return letter && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!$&'()*+,-./:;=@[]^_|~",
                            letter);
}

/* Read the two digits of an escape; -1 if they are none. */
static int take_byte(struct slice *rest) {
    int value = 0;
    if (rest->size < 2) return -1;
    for (int i = 0; i < 2; i++, skip(rest, 1)) {
        char letter = *rest->at;
        if (letter >= '0' && letter <= '9') value = value * 16 + letter - '0';
        else if (letter >= 'A' && letter <= 'F') value = value * 16 + letter - 'A' + 10;
        else if (letter >= 'a' && letter <= 'f') value = value * 16 + letter - 'a' + 10;
        else return -1;
    }
    return value;
}

/* Decode the path of a URI; 0 where a URL parser would change it. */
static int decode_path(struct slice rest, char *into) {
    while (rest.size) {
        int letter = *rest.at;
        skip(&rest, 1);
        if (letter == '%') letter = take_byte(&rest);
        else if (!is_plain((char)letter)) return 0;
        if (letter <= 0 || (letter == '/' && rest.at[-1] != '/')) return 0; /* an escaped one */
        *into++ = (char)letter;
    }
    return *into = 0, 1;
}

/* Take a path, or the URI of one, that is its own normalised form. */
static int take_path(struct slice *rest, char *into) {
    static const char BEGINNING[] = "file:///";
    struct slice found;
    if (!take_string(rest, &found) || found.size >= PATH_MAX) return 0;
    if (found.size >= strlen(BEGINNING) && !memcmp(found.at, BEGINNING, strlen(BEGINNING))) {
        skip(&found, strlen(BEGINNING) - 1);
        return decode_path(found, into) && is_normal(into);
    }
    memcpy(into, found.at, found.size);
    into[found.size] = 0;
    return is_normal(into);
}

static int take_flag(struct slice *rest, int *flag) {
    *flag = take(rest, "true") ? 1 : take(rest, "false") ? 0 : NOT_GIVEN;
    return *flag != NOT_GIVEN || take(rest, "null");
}

/* Read an object; `member` reads the value of a name, 0 for a name that it does not expect. */
static int take_object(struct slice *rest, int (*member)(struct slice *, const struct slice *, struct request *),
                       struct request *request) {
    struct slice name;
    if (!take(rest, "{")) return 0;
    do
        if (!take_string(rest, &name) || !take(rest, ":") || !member(rest, &name, request)) return 0;
    while (take(rest, ","));
    return take(rest, "}");
}

/* An operation that does not have one of these members ignores it. */
static int params_member(struct slice *rest, const struct slice *name, struct request *request) {
    if (is(name, "sandbox")) return take(rest, "null");
    if (is(name, "followSymlinks")) return take(rest, "null") || take(rest, "true");
    if (is(name, "recursive")) return take_flag(rest, &request->recursive);
    if (is(name, "force")) return take_flag(rest, &request->force);
    if (is(name, "dataBase64")) return take_string(rest, &request->content);
    if (is(name, "path")) return take_path(rest, request->path);
    if (is(name, "sourcePath")) return take_path(rest, request->source);
    return is(name, "destinationPath") && take_path(rest, request->destination);
}

static int request_member(struct slice *rest, const struct slice *name, struct request *request) {
    struct slice found;
    if (is(name, "params")) return !request->has_params++ && take_object(rest, params_member, request);
    if (!is(name, "operation") || !take_string(rest, &found) || found.size >= sizeof request->operation) return 0;
    memcpy(request->operation, found.at, found.size);
    request->operation[found.size] = 0;
    return 1;
}

int read_request(const char *data, size_t size, struct request *request) {
    struct slice rest = {data, size};
    memset(request, 0, sizeof *request);
    request->recursive = request->force = NOT_GIVEN;
    if (!take_object(&rest, request_member, request) || !take(&rest, "") || rest.size) return 0;
    return strcmp(request->operation, "fs/copy") ? *request->path : *request->source && *request->destination;
}
