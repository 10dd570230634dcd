/* What the model must know of an offloaded unit: how many bytes of it are headers that each segment will repeat.
 *
 * The kernel's own hdr_len is only a hint (the linear part of its buffer), so the transport header is looked at. */
#include "headers.h"

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

/* ---- explicit congestion notification (RFC 3168) ---- */

#define ECN_MASK 3
#define IPV4_HEADER_BYTES 20
#define IPV6_HEADER_BYTES 40

/* The lowest bits of IPv4's second byte; in IPv6 they straddle the first two bytes. */
static unsigned ecn_field(const uint8_t *ip, size_t length)
{
    if (length >= IPV4_HEADER_BYTES && ip[0] >> 4 == 4)
        return ip[1] & ECN_MASK;
    if (length >= IPV6_HEADER_BYTES && ip[0] >> 4 == 6)
        return ip[1] >> 4 & ECN_MASK;
    return 0;
}

int nl_ecn_capable(const uint8_t *ip, size_t length)
{
    return ecn_field(ip, length) != 0;
}

/* IPv4's checksum changes by as much as the word that holds the field (RFC 1624, equation 3). */
static void mark_ipv4(uint8_t *ip)
{
    uint32_t before = (uint32_t)(ip[0] << 8 | ip[1]);
    ip[1] |= ECN_MASK;
    uint32_t after = (uint32_t)(ip[0] << 8 | ip[1]);
    uint32_t sum = (uint32_t)(ip[10] << 8 | ip[11]);
    sum = (~sum & 0xffff) + (~before & 0xffff) + after;
    sum = (sum & 0xffff) + (sum >> 16);
    sum = ~(sum + (sum >> 16));
    ip[10] = (uint8_t)(sum >> 8);
    ip[11] = (uint8_t)sum;
}

void nl_ecn_mark(uint8_t *ip, size_t length)
{
    if (!ecn_field(ip, length))
        return;
    if (ip[0] >> 4 == 4)
        mark_ipv4(ip);
    else
        ip[1] |= ECN_MASK << 4;
}
