/* Where unpacked trees are kept: which folders may be trusted, and how a tree gets into one. */
#ifndef CACHE_H
#define CACHE_H

#include <limits.h>
#include <stddef.h>

#include "prove.h"

/* Two archives, one behind the other: what file helpers need of the tree, and the rest. */
struct payload {
    const unsigned char *data;
    size_t size, part;         /* of both, of the first one */
    char hash[65]; /* names the tree */
    struct manifest manifest;
};

struct place {
    char path[PATH_MAX - 128]; /* room is left for names inside; symlinks are resolved once it is open */
    char why_not[PATH_MAX];    /* empty while nothing speaks against it; may name a path */
    int is_short;              /* of descriptors or memory, which no other place would have more of */
    int is_doubted;            /* sandboxes may often write there: nothing in it is believed without proof */
};

enum { MOST_PLACES = 6 };

/* Fill `places`, which has room for MOST_PLACES, in the order they are to be tried; returns their number. */
int find_places(struct place *places);

/* Return a descriptor that keeps the tree in a place from being removed, or -1: not there, or `why_not` says more.
 * In a place that is doubted the tree has been proven; one that is not ours is put aside.
 * The descriptor is not close-on-exec: it serves as long as the program runs. */
int open_tree(struct place *place, const struct payload *payload);

/* Make the place if needed and unpack the tree into it; 0, or -1 and `why_not`. */
int install_tree(struct place *place, const struct payload *payload);

/* Remove the tree from a place again, unless somebody uses it. */
void discard_tree(struct place *place, const struct payload *payload);

/* Unpack what a file helper needs into a folder of its own in the place; 0, or -1 and `why_not`.
 * `path` takes PATH_MAX bytes.  The folder is the helper's to remove; later starts remove what one left. */
int install_part(struct place *place, const struct payload *payload, char *path);
void remove_part(const char *path);

#endif
