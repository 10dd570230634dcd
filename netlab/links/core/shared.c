/* Parameters in, counters out: the memory that the relay process shares with whoever steers and watches it.
 *
 * Parameters are guarded by a sequence lock: its number is odd while they are being written, and a reader that meets an
 * odd number, or another one after reading than before, reads again. There is one writer. Everything is copied in whole
 * words with release and acquire, so neither side can see a word of the new parameters with the old sequence. */
#include "shared.h"

size_t nl_shared_bytes(uint32_t directions)
{
    return sizeof(struct nl_shared) + directions * sizeof(struct nl_direction);
}

struct nl_direction *nl_shared_direction(struct nl_shared *shared, uint32_t index)
{
    return (struct nl_direction *)(void *)(shared + 1) + index;
}

static void put_words(void *to, const void *from, size_t bytes)
{
    uint64_t *target = to;
    const uint64_t *source = from;
    for (size_t i = 0; i < bytes / sizeof *target; i++)
        __atomic_store_n(&target[i], source[i], __ATOMIC_RELEASE);
}

static void get_words(void *to, const void *from, size_t bytes)
{
    uint64_t *target = to;
    const uint64_t *source = from;
    for (size_t i = 0; i < bytes / sizeof *target; i++)
        target[i] = __atomic_load_n(&source[i], __ATOMIC_ACQUIRE);
}

_Static_assert(sizeof(struct nl_params) % sizeof(uint64_t) == 0, "parameters are whole words");
_Static_assert(sizeof(struct nl_stats) % sizeof(uint64_t) == 0, "counters are whole words");

/* The reader must be woken afterwards. */
void nl_params_publish(struct nl_direction *direction, const struct nl_params *params, const int64_t *jitter,
                       uint64_t memory_cap_bytes)
{
    uint64_t sequence = direction->sequence;
    __atomic_store_n(&direction->sequence, sequence + 1, __ATOMIC_RELAXED);
    put_words(&direction->params, params, sizeof *params);
    if (jitter)
        put_words(direction->jitter, jitter, sizeof direction->jitter);
    __atomic_store_n(&direction->memory_cap_bytes, memory_cap_bytes, __ATOMIC_RELEASE);
    __atomic_store_n(&direction->sequence, sequence + 2, __ATOMIC_RELEASE);
}

int nl_setting_changed(const struct nl_direction *direction, uint64_t sequence)
{
    return __atomic_load_n(&direction->sequence, __ATOMIC_RELAXED) != sequence;
}

int nl_setting_read(const struct nl_direction *direction, struct nl_setting *setting)
{
    setting->sequence = __atomic_load_n(&direction->sequence, __ATOMIC_ACQUIRE);
    get_words(&setting->params, &direction->params, sizeof setting->params);
    get_words(setting->jitter, direction->jitter, sizeof setting->jitter);
    setting->memory_cap_bytes = __atomic_load_n(&direction->memory_cap_bytes, __ATOMIC_ACQUIRE);
    return !(setting->sequence & 1)
        && __atomic_load_n(&direction->sequence, __ATOMIC_RELAXED) == setting->sequence;
}

/* The sequence number of the parameters that the thread uses by now. */
uint64_t nl_params_taken(const struct nl_direction *direction)
{
    return __atomic_load_n(&direction->taken, __ATOMIC_ACQUIRE);
}

/* Counters one by one, each whole; together they may straddle a packet. */
void nl_stats_read(const struct nl_direction *direction, struct nl_stats *out)
{
    const uint64_t *from = (const uint64_t *)(const void *)&direction->stats;
    uint64_t *to = (uint64_t *)(void *)out;
    for (size_t i = 0; i < sizeof *out / sizeof *to; i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

/* The thread only ever raises a peak that it has just read. What it raises while this runs counts for the next
 * interval; at worst one packet's own value is missing there, which is below the peak that was taken. */
uint64_t nl_peak_take(uint64_t *counter)
{
    return __atomic_exchange_n(counter, 0, __ATOMIC_RELAXED);
}
