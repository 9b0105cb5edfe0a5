/* The filter template: it takes plans and starts from the zygote, and forks sandbox inits. */
#ifndef TEMPLATE_H
#define TEMPLATE_H

/* Be the template, until there is nothing to do; under the filter already, with the socket as descriptor 3. */
_Noreturn void be_template(void);

#endif
