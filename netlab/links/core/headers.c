/* What the model must know of an offloaded unit: how many bytes of it are headers that each segment will repeat.
 *
 * The kernel's own hdr_len is only a hint (the linear part of its buffer), so the transport header is looked at. */
#include "pump.h"

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4 /* kernel headers before 6.2 */
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

#define TCP_DATA_OFFSET 12
#define UDP_HEADER_BYTES 8

static int transport_header_bytes(const uint8_t *bytes, uint32_t length, uint32_t start, uint8_t gso_type)
{
    if (gso_type == VIRTIO_NET_HDR_GSO_UDP_L4 || gso_type == VIRTIO_NET_HDR_GSO_UDP)
        return UDP_HEADER_BYTES;
    if (start + TCP_DATA_OFFSET >= length)
        return -1;
    return (bytes[start + TCP_DATA_OFFSET] >> 4) * 4;
}

int nl_headers_parse(const struct virtio_net_hdr *offload, const uint8_t *bytes, struct nl_packet *packet)
{
    uint8_t gso_type = offload->gso_type & (uint8_t)~VIRTIO_NET_HDR_GSO_ECN;
    packet->header = 0;
    packet->gso_size = 0;
    if (gso_type == VIRTIO_NET_HDR_GSO_NONE)
        return 0;
    /* segmentation needs the checksum of each segment, so its start, the transport header, is always given */
    if (!(offload->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) || !offload->gso_size)
        return -1;
    uint32_t start = offload->csum_start;
    int transport = transport_header_bytes(bytes, packet->length, start, gso_type);
    if (transport < 0 || start + (uint32_t)transport > packet->length)
        return -1;
    packet->header = start + (uint32_t)transport;
    packet->gso_size = offload->gso_size;
    return 0;
}
