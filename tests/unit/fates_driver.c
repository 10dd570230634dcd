/* Directions' threads that write packets' fates as fast as they can while the log's thread brings them to a file: what
 * is in the file, and what is counted as left out, must be all there was. Arguments: file, packets per direction, limit.
 * Prints records, left out. */
#include "fate.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DIRECTIONS 3
#define HEADER_BYTES 96

static struct nl_shared *shared;
static uint64_t packets;

static void *write_fates(void *argument)
{
    struct nl_fates *fates = argument;
    for (uint64_t i = 1; i <= packets; i++) {
        struct nl_packet packet = {.cookie = i, .arrival_ns = i * 10, .release_ns = i * 10 + 5, .segments = 1,
                                   .ip_bytes = (uint32_t)i, .corrupt_bit = NL_NO_BIT, .marked = i % 2};
        nl_fate_note(fates, &packet, i % 3 ? NL_FATE_PASSED : NL_FATE_QUEUE, i * 10 + 7);
        if (i % 1000 == 0)
            usleep(1000);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    int fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    packets = strtoull(arguments[2], NULL, 10);
    shared = calloc(1, nl_shared_bytes(DIRECTIONS));
    if (fd < 0 || !shared)
        return 1;
    shared->directions = DIRECTIONS;
    shared->fate_fd = fd;
    shared->fate_offset = HEADER_BYTES;
    shared->fate_limit = strtoull(arguments[3], NULL, 10);
    struct nl_fate_log log;
    if (nl_fate_log_open(&log, shared) != 0)
        return 1;
    pthread_t threads[DIRECTIONS];
    for (uint32_t i = 0; i < DIRECTIONS; i++) {
        void *fates = (void *)(uintptr_t)nl_shared_direction(shared, i)->fates;
        if (pthread_create(&threads[i], NULL, write_fates, fates) != 0)
            return 1;
    }
    for (uint32_t i = 0; i < DIRECTIONS; i++)
        pthread_join(threads[i], NULL);
    nl_fate_log_close(&log);
    uint64_t counters[3];
    if (pread(fd, counters, sizeof counters, 16) != sizeof counters)
        return 1;
    printf("%llu %llu %llu\n", (unsigned long long)counters[0], (unsigned long long)counters[1],
           (unsigned long long)counters[2]);
    free(shared);
    close(fd);
    return 0;
}
