// The state of a grid that runs strictly, and what its threads do to memory: a part of `strict_runtime.cpp`.
#pragma once
#include "strict_runtime.h"
#include "host_stacks.h"
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

namespace {

constexpr unsigned n_lanes = 32, most_threads = 1024, stack_nbytes = 1 << 16, page_nbytes = 4096;

enum class State { runs, at_block, at_warp, at_vote, ended };

struct Thread {
    ShimStack stack;
    State state;
    unsigned mask;           // of the warp's barrier where it waits
    const void* place;       // of that barrier, or the block's
    unsigned votes;          // its own while it waits, then those of all
    unsigned seen[n_lanes];  // how far each thread of the warp had come when this one last heard of it; itself: is
};

struct Access {
    unsigned block, phase, thread, time;  // block: 1 is the first of this launch, 0 means none; phase: __syncthreads
    const void* place;
    bool is_atomic;
};

struct Byte {
    Access write, read[2];
};

struct Conflict {
    unsigned char* at;
    unsigned nbytes;
    unsigned char before[16];
    Access first, second;
};

ShimGrid grid;
std::mt19937_64 random_bits;
std::vector<Thread> threads;
std::unique_ptr<char[]> stacks;
ShimStack scheduler;
unsigned running, block, phase;
bool failed;
std::unordered_map<uintptr_t, std::unique_ptr<Byte[]>> pages;
Conflict pending;  // two writes without an order, if nbytes is not 0; harmless if the second changes nothing

}  // namespace

// Set by the linker.
extern char __ehdr_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));
extern char __start_shim_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_shim_shared[] __attribute__((weak, visibility("hidden")));

namespace {

bool is_within(const void* at, const void* begin, const void* end) { return at >= begin && at < end; }

bool is_shared(const void* at) { return is_within(at, __start_shim_shared, __stop_shim_shared); }

unsigned long offset_of(const void* place) { return (char*)place - __ehdr_start - 1; }

[[noreturn]] void stop()
{
    failed = true;
    shim_switch(&threads[running].stack, &scheduler);
    __builtin_unreachable();
}

[[noreturn]] void fail(const char* what, const void* place)
{
    snprintf(grid.message, 1000, "%s at <0x%lx>, thread %u of block %u", what, offset_of(place), running, block - 1);
    stop();
}

// ---- accesses

const char* name_of(const Access& access, bool is_write)
{
    return access.is_atomic ? "atomic" : is_write ? "write" : "read";
}

[[noreturn]] void fail_race(const void* at, const Access& a, bool a_writes, const Access& b, bool b_writes)
{
    snprintf(grid.message, 1000,
             "race in %s memory: %s at <0x%lx> by thread %u of block %u, and %s at <0x%lx> by thread %u of block %u",
             is_shared(at) ? "shared" : "global", name_of(a, a_writes), offset_of(a.place), a.thread, a.block - 1,
             name_of(b, b_writes), offset_of(b.place), b.thread, b.block - 1);
    stop();
}

bool is_ordered(const void* at, const Access& before, const Access& now)
{
    if (!before.block || (before.is_atomic && now.is_atomic)) return true;
    if (before.block != now.block) return is_shared(at);  // which is another one in another block
    if (before.phase != now.phase || before.thread == now.thread) return true;
    if (before.thread / n_lanes != now.thread / n_lanes) return false;
    return threads[now.thread].seen[before.thread % n_lanes] >= before.time;
}

Byte& byte_at(const unsigned char* at)
{
    static uintptr_t last_page;
    static Byte* last;
    const uintptr_t page = (uintptr_t)at / page_nbytes;
    if (pages.empty() || page != last_page || !last) {
        auto& found = pages[page];
        if (!found) found.reset(new Byte[page_nbytes]());
        last_page = page;
        last = found.get();
    }
    return last[(uintptr_t)at % page_nbytes];
}

// Once the writing thread has written.
void settle()
{
    if (!pending.nbytes) return;
    const bool has_changed = std::memcmp(pending.at, pending.before, pending.nbytes) != 0;
    pending.nbytes = 0;
    if (has_changed) fail_race(pending.at, pending.first, true, pending.second, true);
}

void look_at_write(unsigned char* at, const Access& now)
{
    Byte& byte = byte_at(at);
    for (const Access& read : byte.read)
        if (!is_ordered(at, read, now)) fail_race(at, read, false, now, true);
    if (!is_ordered(at, byte.write, now)) {
        if (byte.write.is_atomic || now.is_atomic) fail_race(at, byte.write, true, now, true);
        if (!pending.nbytes) pending = Conflict{at, 0, {}, byte.write, now};
        const unsigned nbytes = (unsigned)(at + 1 - pending.at);
        if (nbytes > sizeof pending.before) fail_race(at, byte.write, true, now, true);
        while (pending.nbytes < nbytes) {
            pending.before[pending.nbytes] = pending.at[pending.nbytes];
            ++pending.nbytes;
        }
    }
    byte = Byte{now, {}};
}

void look_at_read(unsigned char* at, const Access& now)
{
    Byte& byte = byte_at(at);
    if (!is_ordered(at, byte.write, now)) fail_race(at, byte.write, true, now, false);
    if (byte.read[0].block != now.block || byte.read[0].thread != now.thread) byte.read[1] = byte.read[0];
    byte.read[0] = now;
}

void look_at(const void* address, size_t nbytes, bool is_write, bool is_atomic, const void* place)
{
    settle();
    unsigned char* const at = (unsigned char*)address;
    if (is_within(at, stacks.get(), stacks.get() + grid.n_threads * stack_nbytes)) {
        if ((size_t)((char*)at - stacks.get()) / stack_nbytes != running) fail("local memory of another thread", place);
        return;
    }
    if (is_write && !is_shared(at) && is_within(at, __ehdr_start, _end)) fail("write to memory of no kind", place);
    const Access now = {block, phase, running, threads[running].seen[running % n_lanes], place, is_atomic};
    for (size_t i = 0; i < nbytes; ++i)
        if (is_write) look_at_write(at + i, now);
        else look_at_read(at + i, now);
}

}  // namespace
