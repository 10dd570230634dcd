/* A queue by release time: see order.h. packet->child is the first of its children, packet->next its next sibling. */
#include "order.h"

static int before(const struct nl_packet *a, const struct nl_packet *b)
{
    return a->release_ns < b->release_ns || (a->release_ns == b->release_ns && a->sequence < b->sequence);
}

static struct nl_packet *meld(struct nl_packet *a, struct nl_packet *b)
{
    if (!a || !b)
        return a ? a : b;
    if (before(b, a)) {
        struct nl_packet *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->child;
    a->child = b;
    return a;
}

struct nl_packet *nl_order_put(struct nl_packet *first, struct nl_packet *packet)
{
    packet->next = NULL;
    packet->child = NULL;
    return meld(first, packet);
}

/* Meld the children in pairs from the front, then the pairs from the back. */
struct nl_packet *nl_order_without_first(struct nl_packet *first)
{
    struct nl_packet *pairs = NULL, *rest = first->child, *whole = NULL;
    while (rest) {
        struct nl_packet *a = rest, *b = rest->next;
        rest = b ? b->next : NULL;
        a->next = NULL;
        if (b)
            b->next = NULL;
        struct nl_packet *pair = meld(a, b);
        pair->next = pairs;
        pairs = pair;
    }
    while (pairs) {
        struct nl_packet *next = pairs->next;
        pairs->next = NULL;
        whole = meld(whole, pairs);
        pairs = next;
    }
    return whole;
}
