/* Lets user-mode Linux 6.1 run on processors with AMX. Loaded into it by LD_PRELOAD (see uml.py).
 *
 * To switch between its processes, user-mode Linux saves and restores their registers by ptrace, in a buffer of 2696
 * bytes: room for AVX-512 and protection keys. With AMX the host's register state is 11008 bytes, and the host refuses
 * to restore less than all of it (EFAULT; the guest panics at its first instruction: "ptrace set fp regs failed").
 * Here what is too short is extended to the host's size, with the AMX parts in their initial state. Nobody can have
 * put them into another one: that takes a permission (ARCH_REQ_XCOMP_PERM) which user-mode Linux never asks for.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#define LARGEST 65536
#define STATE_BITMAP 512 /* offset of xstate_bv, the list of parts that are not in their initial state */
#define AMX_PARTS ((UINT64_C(1) << 17) | (UINT64_C(1) << 18))

typedef long ptrace_function(enum __ptrace_request request, ...);

static _Alignas(64) unsigned char whole[LARGEST]; /* user-mode Linux traces from one thread */
static size_t host_bytes;

static long set_whole(ptrace_function *next, long pid, const struct iovec *part)
{
    memset(whole, 0, host_bytes);
    memcpy(whole, part->iov_base, part->iov_len);
    uint64_t parts;
    memcpy(&parts, whole + STATE_BITMAP, sizeof parts);
    parts &= ~AMX_PARTS;
    memcpy(whole + STATE_BITMAP, &parts, sizeof parts);
    struct iovec all = {.iov_base = whole, .iov_len = host_bytes};
    return next(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &all);
}

static size_t ask_host_bytes(ptrace_function *next, long pid)
{
    struct iovec all = {.iov_base = whole, .iov_len = sizeof whole};
    return next(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &all) == 0 ? all.iov_len : 0;
}

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_function *next;
    va_list arguments;
    va_start(arguments, request);
    long pid = va_arg(arguments, long);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (!next)
        next = (ptrace_function *)dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
        if (!host_bytes)
            host_bytes = ask_host_bytes(next, pid);
        if (((struct iovec *)data)->iov_len < host_bytes)
            return set_whole(next, pid, data);
    }
    return next(request, pid, address, data);
}
