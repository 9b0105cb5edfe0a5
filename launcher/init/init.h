/* One sandbox init, as sandbox_init.py has it. */
#ifndef INIT_H
#define INIT_H

#include "message.h"

enum { REPORT = 3 };

extern char slave_path[SLAVE_BYTES]; /* where a plan's steps find the path of this start's terminal */

/* Be the init of a start until its command ends; the descriptors are those that came with it. */
_Noreturn void be_init(struct start *start, const struct plan *plan, const int *descriptors);

/* Play a part of a plan; 0 at the first result that is not the recorded one. */
int play(const struct plan *plan, int part, const struct start *start);

/* Enter the sandbox root, without any privilege in the end; 0 if something was not as recorded. */
int enter_root(const struct plan *plan, const struct start *start);

/* Enter a folder outside of the root; `real` gets its path without symlinks, or `cwd` where none is known; 0 if that
 * is too long. */
int enter_outside(const char *cwd, char real[PATH_BYTES]);

/* Start the command in its working directory.  Returns its pid, or minus the exit status of a command that cannot be
 * started, and then all is said. */
long start_command(struct texts *texts, const char *real);

#endif
