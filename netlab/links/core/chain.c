/* Random events that may cluster: a Markov chain over the packets of one direction. Pure.
 *
 * One form serves all models of netlab/chances.py: independent and correlated events (two states), Gilbert-Elliott (two
 * states, judged before the state moves) and the four-state model. */
#include "chain.h"

#define MOVES (NL_STATES_MAX - 1)

static int happens(uint64_t probability, uint64_t bits)
{
    return (bits >> 1) < probability;
}

static void move(const struct nl_chain *chain, struct nl_chain_state *state, uint64_t bits)
{
    const uint64_t *upto = &chain->move[state->state * MOVES];
    uint32_t to = 0;
    while (to + 1 < chain->states && !happens(upto[to], bits))
        to++;
    state->state = to;
}

int nl_chain_next(const struct nl_chain *chain, struct nl_chain_state *state, uint64_t seed, enum nl_stream stream)
{
    uint64_t n = state->count++;
    if (!chain->states)
        return 0;
    if (chain->move_first)
        move(chain, state, nl_random(seed, stream, n, 0));
    int event = happens(chain->event[state->state], nl_random(seed, stream, n, 1));
    if (!chain->move_first)
        move(chain, state, nl_random(seed, stream, n, 0));
    return event;
}

void nl_chain_change(const struct nl_chain *from, const struct nl_chain *to, struct nl_chain_state *state)
{
    if (from->states != to->states || from->move_first != to->move_first)
        state->state = 0;
}
