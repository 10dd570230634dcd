/* CoDel, controlled delay active queue management (RFC 8289): see codel.c. */
#ifndef NETLAB_CODEL_H
#define NETLAB_CODEL_H

#include "abi.h"

enum nl_codel_verdict {
    NL_CODEL_SEND,
    NL_CODEL_DROP,
    NL_CODEL_MARK,
};

/* A packet's turn has come at now_ns after sojourn_ns in the queue, in which backlog_bytes still wait behind it. */
enum nl_codel_verdict nl_codel_judge(const struct nl_params *params, struct nl_codel *codel, uint64_t now_ns,
                                     uint64_t sojourn_ns, uint64_t backlog_bytes, int may_mark);

#endif
