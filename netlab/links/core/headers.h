/* The little that the relay reads and changes in a packet's headers. */
#ifndef NETLAB_HEADERS_H
#define NETLAB_HEADERS_H

#include "abi.h"

#include <linux/virtio_net.h>

/* Read the headers of a packet behind a virtio-net header into packet->header and packet->gso_size. packet->length does
 * not count the virtio-net header. 0, or -1 when the packet is shorter than its headers say. */
int nl_headers_parse(const struct virtio_net_hdr *offload, const uint8_t *bytes, struct nl_packet *packet);

/* For an IP packet of this length. Whether its sender understands "congestion experienced"; and to set that. */
int nl_ecn_capable(const uint8_t *ip, size_t length);
void nl_ecn_mark(uint8_t *ip, size_t length);

#endif
