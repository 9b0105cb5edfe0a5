/* Filters of system calls, and the one whose listener an exec supervisor has. */
#ifndef WATCH_H
#define WATCH_H

#include "message.h"

enum { KEPT = 4 };

/* Put this process and all that it starts under a filter; the listener if the flags ask for one, or minus the errno. */
long install(const struct instruction *instructions, uint64_t count, uint64_t flags);

/* Keep what watches the next start, for which a listener is asked; 0 if it is malformed. */
int keep_watch(const struct watch *message);

/* Tell whether starts are watched. */
int is_watching(void);

/* Have the supervisor hear of every exec of this process and all that it starts, through the channel, which is KEPT;
 * 0 if that fails, and then nobody hears of anything. */
int watch_self(void);

#endif
