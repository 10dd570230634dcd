/* Random numbers by count: the n-th number of a stream depends on seed, stream and n alone, so that nothing that happens
 * in between (a change of parameters, another stream in use) moves the sequence. */
#ifndef NETLAB_RANDOM_H
#define NETLAB_RANDOM_H

#include "abi.h"

enum nl_stream {
    NL_STREAM_DUPLICATE = 1,
    NL_STREAM_LOSS = 2,
    NL_STREAM_CORRUPT = 3,
    NL_STREAM_REORDER = 4,
    NL_STREAM_JITTER = 5,
    NL_STREAM_JITTER_TURN = 6,
};

/* A number with 64 random bits. lane tells apart the numbers that one event needs: 0 to 3. */
uint64_t nl_random(uint64_t seed, enum nl_stream stream, uint64_t n, uint32_t lane);

/* A random number below limit, from 64 random bits. */
uint64_t nl_below(uint64_t bits, uint64_t limit);

#endif
