/* CoDel (RFC 8289, section 5): judged when a packet's turn comes, by how long it has waited. Pure.
 *
 * The RFC's dequeue loop, turned inside out: the caller asks for one packet after the other, and a drop means "ask again
 * with the next, at the same time". */
#include "codel.h"

#define RECENT_INTERVALS 16 /* a drop phase that follows so soon takes up where the last one left off */

/* floor(sqrt(value)) */
static uint64_t square_root(uint64_t value)
{
    uint64_t root = 0;
    for (uint64_t bit = (uint64_t)1 << 31; bit; bit >>= 1)
        if ((root + bit) * (root + bit) <= value)
            root += bit;
    return root;
}

/* interval / sqrt(count) later */
static uint64_t control_law(const struct nl_params *params, uint64_t from_ns, uint64_t count)
{
    uint64_t root = square_root(count << 32); /* sqrt(count) * 2^16 */
    return from_ns + (uint64_t)(((unsigned __int128)params->codel_interval_ns << 16) / root);
}

/* Whether packets have waited for at least the target, for an interval without a break. */
static int may_drop(const struct nl_params *params, struct nl_codel *codel, uint64_t now_ns, uint64_t sojourn_ns,
                    uint64_t backlog_bytes)
{
    if (sojourn_ns < params->codel_target_ns || backlog_bytes <= params->full_frame) {
        codel->above_until_ns = 0;
        return 0;
    }
    if (!codel->above_until_ns) {
        codel->above_until_ns = now_ns + params->codel_interval_ns;
        return 0;
    }
    return now_ns >= codel->above_until_ns;
}

static void begin_dropping(const struct nl_params *params, struct nl_codel *codel, uint64_t now_ns)
{
    uint64_t recent = codel->count - codel->last_count;
    int soon = now_ns < codel->next_drop_ns + RECENT_INTERVALS * params->codel_interval_ns;
    codel->dropping = 1;
    codel->count = recent > 1 && soon ? recent : 1;
    codel->last_count = codel->count;
    codel->next_drop_ns = control_law(params, now_ns, codel->count);
}

enum nl_codel_verdict nl_codel_judge(const struct nl_params *params, struct nl_codel *codel, uint64_t now_ns,
                                     uint64_t sojourn_ns, uint64_t backlog_bytes, int may_mark)
{
    int ok_to_drop = may_drop(params, codel, now_ns, sojourn_ns, backlog_bytes);
    enum nl_codel_verdict hit = params->codel_ecn && may_mark ? NL_CODEL_MARK : NL_CODEL_DROP;
    if (codel->dropping) {
        if (!ok_to_drop) {
            codel->dropping = 0;
            return NL_CODEL_SEND;
        }
        if (now_ns < codel->next_drop_ns)
            return NL_CODEL_SEND;
        codel->count++;
        codel->next_drop_ns = control_law(params, codel->next_drop_ns, codel->count);
        return hit;
    }
    if (!ok_to_drop)
        return NL_CODEL_SEND;
    begin_dropping(params, codel, now_ns);
    return hit;
}
