/* Packets on their way that may overtake: a queue by release time, then by order of coming. Pure, no memory of its own.
 *
 * A pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986) through the packets' own links: putting one in takes constant
 * time, taking the first logarithmic time on average. */
#ifndef NETLAB_ORDER_H
#define NETLAB_ORDER_H

#include "abi.h"

/* Both return the new first packet; first is NULL when there is none. */
struct nl_packet *nl_order_put(struct nl_packet *first, struct nl_packet *packet);
struct nl_packet *nl_order_without_first(struct nl_packet *first);

#endif
