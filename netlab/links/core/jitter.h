/* Delay that varies from packet to packet, without reordering and without changing its distribution: see jitter.c. */
#ifndef NETLAB_JITTER_H
#define NETLAB_JITTER_H

#include "random.h"

/* Make jitter ready for a table of NL_JITTER_TABLE deviations in ns, ascending. Counts go on, the rest begins anew. */
void nl_jitter_shape(struct nl_jitter *jitter, const int64_t *table);

/* The deviation (ns) of a packet whose last bit leaves at sent_ns, not before the one asked for last. With keep_order,
 * sent_ns + deviation never runs backwards. correlation in units of NL_CERTAIN. */
int64_t nl_jitter_next(struct nl_jitter *jitter, uint64_t seed, uint64_t sent_ns, uint64_t correlation, int keep_order);

#endif
