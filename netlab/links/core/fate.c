/* A direction's side of the log of packets' fates: see fate.h. */
#include "fate.h"

static uint8_t flags_of(const struct nl_packet *packet)
{
    unsigned flags = (packet->marked ? NL_FATE_MARKED : 0u) | (packet->overtakes ? NL_FATE_OVERTOOK : 0u)
        | (packet->corrupt_bit != NL_NO_BIT ? NL_FATE_CORRUPTED : 0u)
        | (packet->cookie & NL_FATE_IS_COPY ? NL_FATE_COPY : 0u);
    return (uint8_t)flags;
}

void nl_fate_put(struct nl_fates *fates, const struct nl_packet *packet, enum nl_fate_kind kind, uint64_t written_ns)
{
    int travelled = kind == NL_FATE_PASSED || kind == NL_FATE_REFUSED || kind == NL_FATE_HELD;
    if (fates->head - __atomic_load_n(&fates->tail, __ATOMIC_ACQUIRE) == NL_FATES) {
        __atomic_store_n(&fates->left_out, fates->left_out + 1, __ATOMIC_RELAXED);
        return;
    }
    fates->ring[fates->head % NL_FATES] = (struct nl_fate){
        .number = packet->cookie & ~NL_FATE_IS_COPY,
        .arrival_ns = packet->arrival_ns,
        .release_ns = travelled ? packet->release_ns : 0,
        .written_ns = written_ns,
        .ip_bytes = packet->ip_bytes,
        .wire_bytes = packet->wire_bytes,
        .segments = (uint16_t)(packet->segments < UINT16_MAX ? packet->segments : UINT16_MAX),
        .direction = fates->direction,
        .kind = (uint8_t)kind,
        .flags = flags_of(packet),
    };
    __atomic_store_n(&fates->head, fates->head + 1, __ATOMIC_RELEASE);
}
