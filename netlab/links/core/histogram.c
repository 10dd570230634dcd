/* A logarithmic histogram of nanoseconds: exact below NL_BUCKETS_PER_OCTAVE, then that many buckets per doubling.
 * A bucket is at most 1/8 of its lower bound wide; the last one takes everything above (73 minutes). */
#include "abi.h"

#define SUB_BITS 3
_Static_assert(1 << SUB_BITS == NL_BUCKETS_PER_OCTAVE, "buckets per octave");

uint32_t nl_bucket_of(uint64_t ns)
{
    if (ns < NL_BUCKETS_PER_OCTAVE)
        return (uint32_t)ns;
    uint32_t exponent = 63 - (uint32_t)__builtin_clzll(ns);
    uint32_t shift = exponent - SUB_BITS;
    uint32_t bucket = (shift + 1) * NL_BUCKETS_PER_OCTAVE + ((uint32_t)(ns >> shift) & (NL_BUCKETS_PER_OCTAVE - 1));
    return bucket < NL_BUCKETS ? bucket : NL_BUCKETS - 1;
}

/* The largest value that falls into the bucket. */
uint64_t nl_bucket_upper_ns(uint32_t bucket)
{
    if (bucket >= NL_BUCKETS - 1)
        return UINT64_MAX;
    if (bucket < NL_BUCKETS_PER_OCTAVE)
        return bucket;
    uint32_t shift = bucket / NL_BUCKETS_PER_OCTAVE - 1;
    uint64_t lower = (uint64_t)(NL_BUCKETS_PER_OCTAVE + bucket % NL_BUCKETS_PER_OCTAVE) << shift;
    return lower + ((uint64_t)1 << shift) - 1;
}
