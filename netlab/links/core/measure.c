/* What a packet, or each packet that an offloaded unit will become, occupies on the link. Pure. */
#include "abi.h"

/* Wire bytes of one packet with this many IP bytes. */
static uint64_t frame_bytes(const struct nl_params *params, uint64_t ip_bytes)
{
    uint64_t framed = ip_bytes + params->overhead;
    return framed > params->min_frame ? framed : params->min_frame;
}

/* Fill in what the packet, or each packet that an offloaded unit will become, occupies on the link. */
void nl_packet_measure(const struct nl_params *params, struct nl_packet *packet)
{
    uint64_t ip = packet->length > params->link_header ? packet->length - params->link_header : 0;
    uint64_t ip_header = packet->header > params->link_header ? packet->header - params->link_header : 0;
    uint64_t segments = 1, wire = frame_bytes(params, ip), total_ip = ip;

    if (packet->gso_size && ip > ip_header) {
        uint64_t payload = ip - ip_header;
        uint64_t last = payload % packet->gso_size;
        segments = payload / packet->gso_size;
        wire = segments * frame_bytes(params, ip_header + packet->gso_size);
        if (last) {
            segments++;
            wire += frame_bytes(params, ip_header + last);
        }
        total_ip = payload + segments * ip_header;
    }
    packet->segments = (uint32_t)segments;
    packet->wire_bytes = wire < NL_WIRE_BYTES_MAX ? (uint32_t)wire : NL_WIRE_BYTES_MAX;
    packet->ip_bytes = total_ip < UINT32_MAX ? (uint32_t)total_ip : UINT32_MAX;
}
