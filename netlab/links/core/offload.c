/* Whether a device hands over single packets or units of many: see offload.h.
 *
 * Where single packets matter (loss, jitter, a slow link), the kernel segments before it queues a packet; this can change
 * while traffic flows, as the link does. */
#include "offload.h"

#include <errno.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>

#ifndef TUN_F_USO4 /* kernel headers before 6.2 */
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif

int nl_offload_set(int device_fd, enum nl_offload offload)
{
    const unsigned long tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    if (offload == NL_OFFLOAD_AS_IS)
        return 0;
    if (offload == NL_OFFLOAD_OFF)
        return ioctl(device_fd, TUNSETOFFLOAD, 0ul);
    if (ioctl(device_fd, TUNSETOFFLOAD, tcp | TUN_F_USO4 | TUN_F_USO6) == 0)
        return 0;
    return errno == EINVAL ? ioctl(device_fd, TUNSETOFFLOAD, tcp) : -1; /* a kernel before 6.2 */
}
