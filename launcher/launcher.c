/* The head of dist/execserver: finds the unpacked tree, or unpacks it, and becomes the program in it.
 *
 * The file is this program, then a compressed tree, then a trailer that says where the tree begins and what its
 * hash is.  The tree carries its own dynamic loader and C library, so nothing of the machine is used but its
 * kernel, /proc and a folder to keep the tree in.  The name this program was called by is handed on as it is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache.h"
#include "plain.h"
#include "wrapper.h"

#ifndef LOADER
#error "LOADER: the file name of the dynamic loader in the tree"
#endif

enum { TRAILER = 128 };

enum { OWN_PART = -2 }; /* in the place of a lock: what the program runs from is a part of a tree, and its to remove */

/* What the loader and the C library would take from the environment is meant for the user's programs, which
 * use other ones.  It is renamed here, and the program in the tree gives it its name back. */
static const char LOADER_PREFIX[] = "LD_", KEPT_PREFIX[] = "_EXECSERVER_KEPT_";

static const char SHORTAGE_CURE[] = "allow more open files (`ulimit -n`), or give it more memory";

static const char FAILURE_CURE[] =
    "use the file for this kind of processor, and let programs be started: look at filters of system calls";

extern char **environ;

static int fail(const char *what, const char *cure) {
    fprintf(stderr, "execserver: %s\n  What to do: %s\n", what, cure);
    return 1;
}

/* Find the tree in our own file.  It stays mapped until the program in the tree takes over. */
static int read_payload(int self, struct payload *payload) {
    struct stat file;
    char trailer[TRAILER + 1] = "";
    uint64_t start = 0, size = 0, listed = 0, part = 0;
    if (fstat(self, &file) || file.st_size < TRAILER) return -1;
    if (pread(self, trailer, TRAILER, file.st_size - TRAILER) != TRAILER) return -1;
    if (sscanf(trailer, "execserver tree %" SCNu64 " %" SCNu64 " %64[0-9a-f] %" SCNu64 " %" SCNu64 "\n",
               &start, &size, payload->hash, &listed, &part) != 5)
        return -1;
    if (start + size + listed + TRAILER != (uint64_t)file.st_size || size < 4 || part > size - 4) return -1;
    const unsigned char *data = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_PRIVATE, self, 0);
    if (data == MAP_FAILED) return -1;
    payload->data = data + start;
    payload->size = (size_t)size;
    payload->part = (size_t)part;
    payload->manifest.text = (const char *)data + start + size;
    payload->manifest.size = (size_t)listed;
    return 0;
}

static char **environment_for_the_program(void) {
    size_t count = 0, length = sizeof LOADER_PREFIX - 1;
    while (environ[count]) count++;
    char **made = calloc(count + 1, sizeof *made);
    for (size_t i = 0; made && i < count; i++) {
        made[i] = environ[i];
        if (strncmp(environ[i], LOADER_PREFIX, length)) continue;
        if (asprintf(&made[i], "%s%s", KEPT_PREFIX, environ[i]) < 0) return NULL;
    }
    return made;
}

static char *joined(const char *folder, const char *name) {
    char *path;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* Become the program; returns only when that fails.
 * Words after the script: descriptor of the tree's lock, our own path, the name we were called by, arguments. */
static void become(const char *tree, int lock, const char *self, int argc, char **argv) {
    char number[16];
    snprintf(number, sizeof number, "%d", lock);
    char *first[] = {
        joined(tree, "lib/" LOADER), "--inhibit-cache", "--library-path", joined(tree, "lib"),
        joined(tree, "python3"),     "-I",              "-S",             "-Xutf8",
        joined(tree, "boot.pyc"),    number,            (char *)self,     argc ? argv[0] : "execserver",
    };
    size_t count = sizeof first / sizeof *first, rest = argc ? (size_t)argc - 1 : 0;
    char **environment = environment_for_the_program(), **words = calloc(count + rest + 1, sizeof *words);
    if (!words || !environment || !first[0] || !first[3] || !first[4] || !first[8]) return;
    memcpy(words, first, sizeof first);
    if (rest) memcpy(words + count, argv + 1, rest * sizeof *argv);
    execve(words[0], words, environment);
}

/* Tell whether an exec failed for where the program lies; else it would fail in every other place, too. */
static int is_of_the_place(int failure) { return failure == EACCES || failure == EPERM || failure == ENOENT; }

/* Note why a program that was to be become cannot start; return the reason if no other place would help, else 0. */
static int note_failure(struct place *place, int failure) {
    snprintf(place->why_not, sizeof place->why_not, "cannot start from it: %s", strerror(failure));
    return is_of_the_place(failure) ? 0 : failure;
}

/* Become a file helper with a part of the tree of its own; returns when that fails: 0, or why it always will. */
static int start_helper(struct place *place, const struct payload *payload, const char *self, int argc, char **argv,
                        mode_t mask) {
    char tree[PATH_MAX];
    if (install_part(place, payload, tree)) return 0;
    umask(mask);
    become(tree, OWN_PART, self, argc, argv);
    int failure = note_failure(place, errno);
    umask(S_IRWXG | S_IRWXO);
    remove_part(tree);
    return failure;
}

/* Unpack the tree and return what keeps it, as `open_tree` does; say which places gave way to this one. */
static int unpack_into(struct place *places, int chosen, const struct payload *payload) {
    struct place *place = &places[chosen];
    if (install_tree(place, payload)) return -1;
    for (int i = 0; i < chosen; i++)
        fprintf(stderr, "execserver: %s is not used: %s\n", places[i].path, places[i].why_not);
    if (chosen) fprintf(stderr, "execserver: unpacked into %s instead\n", place->path);
    int lock = open_tree(place, payload);
    if (lock < 0 && !place->why_not[0])
        snprintf(place->why_not, sizeof place->why_not, "what was unpacked is not there any more");
    return lock;
}

/* Start from the first usable place, and from no other: unpack there if need be.  Returns when there is none: 0,
 * or why the program can be started from nowhere. */
static int start(struct place *places, int count, const struct payload *payload, const char *self, int argc,
                 char **argv) {
    char tree[PATH_MAX];
    /* One that takes the owner's rights would leave a tree that no start can use, nor put right. */
    mode_t mask = umask(S_IRWXG | S_IRWXO);
    int is_helper = payload->part && is_file_helper(argc, argv), failure = 0;
    for (int i = 0; i < count && !failure; i++) {
        struct place *place = &places[i];
        /* Nothing there is believed: proving all of a tree takes longer than unpacking what is needed. */
        if (place->is_doubted && is_helper) {
            failure = start_helper(place, payload, self, argc, argv, mask);
            if (place->is_short) return 0;
            continue;
        }
        int lock = open_tree(place, payload), is_new = lock < 0 && !place->why_not[0];
        if (is_new) lock = unpack_into(places, i, payload);
        if (place->is_short) return 0;
        if (lock < 0) continue;
        snprintf(tree, sizeof tree, "%.*s/%s", (int)sizeof place->path - 1, place->path, payload->hash);
        umask(mask);
        become(tree, lock, self, argc, argv);
        failure = note_failure(place, errno);
        umask(S_IRWXG | S_IRWXO);
        close(lock);
        if (is_new) discard_tree(place, payload);
    }
    return failure;
}

/* Where stdio is closed, what is opened next would be the program's, and take what is written there. */
static int fill_stdio(void) {
    int file;
    do file = open("/dev/null", O_RDWR);
    while (file >= 0 && file <= STDERR_FILENO);
    if (file > STDERR_FILENO) return close(file);
    for (file = STDIN_FILENO; file <= STDERR_FILENO; file++)
        if (fcntl(file, F_GETFD) < 0) return -1;
    return 0; /* none is left for more, which is told later */
}

int main(int argc, char **argv) {
    if (is_wrapper(argc, argv)) return be_wrapper(argc, argv);
    static struct place places[MOST_PLACES];
    struct payload payload;
    char self[PATH_MAX] = "";
    if (fill_stdio()) return fail("stdio is closed, and there is no /dev/null", "mount /dev, or leave it open");
    int status = is_file_helper(argc, argv) ? answer_plainly() : -1;
    if (status >= 0) return status;
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file < 0 && is_shortage(errno)) return fail(strerror(errno), SHORTAGE_CURE);
    if (file < 0 && errno == EACCES)
        return fail("this file may be executed but not read", "allow reading it: `chmod +r`");
    if (file < 0 || readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return fail("/proc is not mounted here", "mount it, e.g. `mount -t proc proc /proc`");
    if (read_payload(file, &payload))
        return fail("this file is damaged or incomplete", "copy it again from where it came from");
    int count = find_places(places);
    int failure = start(places, count, &payload, self, argc, argv);
    for (int i = 0; i < count; i++)
        if (places[i].is_short) return fail(places[i].why_not, SHORTAGE_CURE);
    if (failure) {
        fprintf(stderr, "execserver: this machine does not start the program in this file: %s\n", strerror(failure));
        return fail("cannot start", FAILURE_CURE);
    }
    fputs("execserver: there is no folder to unpack into\n", stderr);
    for (int i = 0; i < count; i++) fprintf(stderr, "  %s: %s\n", places[i].path, places[i].why_not);
    return fail("cannot start", "name a folder that is yours alone, by its full path, in EXECSERVER_CACHE_DIR");
}
