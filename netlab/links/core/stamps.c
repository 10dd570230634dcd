/* Arrival times from the kernel: see stamps.h. */
#define _GNU_SOURCE
#include "stamps.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_tun.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A packet is stamped a moment before it is queued, so a stamp may for that moment be ahead of its packet. A lag that is
 * found so often, over so long, is a packet that was dropped in between. */
#define SETTLE_NS 2000000u
#define SETTLE_LOOKS 32

static int bpf(int command, union bpf_attr *attr)
{
    return (int)syscall(SYS_bpf, command, attr, sizeof *attr);
}

static int make_ring(void)
{
    union bpf_attr attr = {0};
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = sizeof(uint32_t);
    attr.value_size = sizeof(struct nl_stamp_ring);
    attr.max_entries = 1;
    attr.map_flags = BPF_F_MMAPABLE;
    return bpf(BPF_MAP_CREATE, &attr);
}

#define INSN(CODE, DST, SRC, OFF, IMM) {.code = (CODE), .dst_reg = (DST), .src_reg = (SRC), .off = (OFF), .imm = (IMM)}
#define SLOT_BYTES_LOG2 4
_Static_assert(sizeof(struct nl_stamp) == 1 << SLOT_BYTES_LOG2, "size of a stamp");
_Static_assert((NL_STAMPS & (NL_STAMPS - 1)) == 0, "a power of two");

/* ring.stamps[ring.count++ % NL_STAMPS] = {ktime, packet length}; return packet length (keep all of it) */
static int load_program(int ring_fd)
{
    const struct bpf_insn program[] = {
        INSN(BPF_ALU64 | BPF_MOV | BPF_X, 6, 1, 0, 0),
        INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_ktime_get_ns),
        INSN(BPF_ALU64 | BPF_MOV | BPF_X, 7, 0, 0, 0),
        INSN(BPF_LD | BPF_DW | BPF_IMM, 8, BPF_PSEUDO_MAP_VALUE, 0, ring_fd),
        INSN(0, 0, 0, 0, 0),
        INSN(BPF_ALU64 | BPF_MOV | BPF_K, 1, 0, 0, 1),
        INSN(BPF_STX | BPF_DW | BPF_ATOMIC, 8, 1, 0, BPF_ADD | BPF_FETCH),
        INSN(BPF_ALU64 | BPF_AND | BPF_K, 1, 0, 0, NL_STAMPS - 1),
        INSN(BPF_ALU64 | BPF_LSH | BPF_K, 1, 0, 0, SLOT_BYTES_LOG2),
        INSN(BPF_ALU64 | BPF_ADD | BPF_X, 8, 1, 0, 0),
        INSN(BPF_LDX | BPF_W | BPF_MEM, 0, 6, offsetof(struct __sk_buff, len), 0),
        INSN(BPF_STX | BPF_DW | BPF_MEM, 8, 7, offsetof(struct nl_stamp_ring, stamps[0].at_ns), 0),
        INSN(BPF_STX | BPF_DW | BPF_MEM, 8, 0, offsetof(struct nl_stamp_ring, stamps[0].length), 0),
        INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    union bpf_attr attr = {0};
    attr.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
    attr.insns = (uint64_t)(uintptr_t)program;
    attr.insn_cnt = sizeof program / sizeof program[0];
    attr.license = (uint64_t)(uintptr_t) "Apache-2.0";
    return bpf(BPF_PROG_LOAD, &attr);
}

static const struct nl_stamp_ring *map_ring(int ring_fd)
{
    void *memory = mmap(NULL, sizeof(struct nl_stamp_ring), PROT_READ, MAP_SHARED | MAP_POPULATE, ring_fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

int nl_stamps_open(struct nl_stamps *stamps, int device_fd)
{
    *stamps = (struct nl_stamps){0};
    int ring_fd = make_ring();
    if (ring_fd < 0)
        return -1;
    int program_fd = load_program(ring_fd);
    if (program_fd >= 0)
        stamps->ring = map_ring(ring_fd);
    if (stamps->ring && ioctl(device_fd, TUNSETFILTEREBPF, &program_fd) != 0)
        nl_stamps_close(stamps);
    int error = errno;
    if (program_fd >= 0)
        close(program_fd); /* the device and the mapping keep what they need */
    close(ring_fd);
    errno = error;
    return stamps->ring ? 0 : -1;
}

void nl_stamps_close(struct nl_stamps *stamps)
{
    if (stamps->ring)
        munmap((void *)(uintptr_t)stamps->ring, sizeof *stamps->ring);
    stamps->ring = NULL;
}

static uint64_t ring_count(const struct nl_stamps *stamps)
{
    return __atomic_load_n(&stamps->ring->count, __ATOMIC_ACQUIRE);
}

/* Times that are handed out never run backwards or ahead of the read. */
static uint64_t hand_out(struct nl_stamps *stamps, uint64_t at_ns, uint64_t read_ns)
{
    if (at_ns > read_ns)
        at_ns = read_ns;
    if (at_ns > stamps->last_ns)
        stamps->last_ns = at_ns;
    return stamps->last_ns;
}

/* The packets of stamps that were passed over have had their time to come. Returns how many are given up. */
static uint64_t give_up_passed(struct nl_stamps *stamps, uint64_t now_ns)
{
    if (stamps->passed_count == 0 || now_ns - stamps->passed_ns < SETTLE_NS)
        return 0;
    uint64_t lost = stamps->passed_count;
    stamps->passed_count = 0;
    return lost;
}

/* Another packet came before this stamp's. Returns 1 when an older one must be given up for it, else 0. */
static uint64_t pass_over(struct nl_stamps *stamps, const struct nl_stamp *stamp, uint64_t now_ns)
{
    uint64_t lost = stamps->passed_count == NL_PASSED;
    if (lost)
        memmove(stamps->passed, stamps->passed + 1, --stamps->passed_count * sizeof *stamps->passed);
    stamps->passed[stamps->passed_count++] = *stamp;
    stamps->passed_ns = now_ns;
    return lost;
}

/* Whether a stamp of this length was passed over; if so it is taken out, and its time is in *at_ns. */
static int recall(struct nl_stamps *stamps, uint64_t length, uint64_t *at_ns)
{
    for (uint32_t i = 0; i < stamps->passed_count; i++) {
        if (stamps->passed[i].length != length)
            continue;
        *at_ns = stamps->passed[i].at_ns;
        uint32_t after = --stamps->passed_count - i;
        memmove(stamps->passed + i, stamps->passed + i + 1, after * sizeof *stamps->passed);
        return 1;
    }
    return 0;
}

uint64_t nl_stamps_take(struct nl_stamps *stamps, uint64_t length, uint64_t read_ns, uint64_t *lost)
{
    if (!stamps->ring)
        return read_ns;
    uint64_t count = ring_count(stamps), at_ns;
    if (count - stamps->next > NL_STAMPS) { /* overrun: the old ones are overwritten */
        stamps->owed += count - stamps->next;
        stamps->next = count;
    }
    *lost += give_up_passed(stamps, read_ns);
    const struct nl_stamp *head = &stamps->ring->stamps[stamps->next % NL_STAMPS];
    if ((stamps->next == count || head->length != length) && recall(stamps, length, &at_ns))
        return hand_out(stamps, at_ns, read_ns);
    for (uint64_t at = stamps->next; at != count; at++) {
        const struct nl_stamp *stamp = &stamps->ring->stamps[at % NL_STAMPS];
        if (stamp->length != length)
            continue;
        for (; stamps->next != at; stamps->next++)
            *lost += pass_over(stamps, &stamps->ring->stamps[stamps->next % NL_STAMPS], read_ns);
        stamps->next = at + 1;
        return hand_out(stamps, stamp->at_ns, read_ns);
    }
    if (stamps->owed)
        stamps->owed--;
    stamps->last_ns = read_ns;
    return read_ns; /* its stamp was overwritten, or it was queued before the program was attached */
}

uint64_t nl_stamps_settle(struct nl_stamps *stamps, uint64_t now_ns)
{
    if (!stamps->ring)
        return 0;
    uint64_t passed = give_up_passed(stamps, now_ns);
    uint64_t lag = ring_count(stamps) - stamps->next + stamps->owed;
    if (lag == 0 || lag < stamps->lag_least || stamps->lag_least == 0) {
        stamps->lag_least = lag;
        stamps->lag_since_ns = now_ns;
        stamps->lag_seen = 0;
        return passed;
    }
    if (++stamps->lag_seen < SETTLE_LOOKS || now_ns - stamps->lag_since_ns < SETTLE_NS)
        return passed;
    uint64_t lost = stamps->lag_least;
    uint64_t overwritten = lost < stamps->owed ? lost : stamps->owed;
    stamps->owed -= overwritten;
    stamps->next += lost - overwritten;
    stamps->lag_least = 0;
    return passed + lost;
}
