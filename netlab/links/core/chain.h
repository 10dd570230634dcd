/* Random events that may cluster: see chain.c. */
#ifndef NETLAB_CHAIN_H
#define NETLAB_CHAIN_H

#include "random.h"

/* Whether the next packet has the event. Counts it, also where the event never happens. */
int nl_chain_next(const struct nl_chain *chain, struct nl_chain_state *state, uint64_t seed, enum nl_stream stream);

/* Parameters change from one chain to another: the count goes on; the state too, if it means the same. */
void nl_chain_change(const struct nl_chain *from, const struct nl_chain *to, struct nl_chain_state *state);

#endif
