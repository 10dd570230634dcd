/* Counter-based random numbers: see random.h.
 *
 * The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): a
 * counter times an odd constant, mixed by a bijection. Its state is the count, so any number can be had directly. */
#include "random.h"

#define LANES 4
#define GOLDEN 0x9e3779b97f4a7c15u

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t nl_random(uint64_t seed, enum nl_stream stream, uint64_t n, uint32_t lane)
{
    uint64_t key = mix(seed + mix((uint64_t)stream * GOLDEN));
    return mix(key + (n * LANES + lane + 1) * GOLDEN);
}

uint64_t nl_below(uint64_t bits, uint64_t limit)
{
    return (uint64_t)(((unsigned __int128)bits * limit) >> 64);
}
