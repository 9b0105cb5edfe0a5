/* The filter template: it takes plans and starts from the zygote, and forks sandbox inits. */
#ifndef TEMPLATE_H
#define TEMPLATE_H

#include <stdint.h>

/* Be the template, until there is nothing to do; with the socket as descriptor 3.  `words` are what the kernel leaves on
 * the stack, the number of arguments first.  With one, its name, it is the zygote's, and under the filter already; with
 * a second it is an exec supervisor's, serves one start, and the plan installs the filter. */
_Noreturn void be_template(const uintptr_t *words);

#endif
