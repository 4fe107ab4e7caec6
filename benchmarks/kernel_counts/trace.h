// Counts what a kernel does under ``cuda_shim.h``: how often each thread comes to each place in the host's code.
//
// The compiler calls these functions: at every basic block (-fsanitize-coverage=trace-pc), or at every access to memory
// that is not a local variable's (-fsanitize=thread). Included between the shim and the kernel.
#pragma once
#include <cstdint>

#define NOT_TRACED __attribute__((no_sanitize("thread"), no_sanitize_coverage, noinline))

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));  // where this library begins in memory

struct TracePlace {
    uint64_t address, kind, nbytes, by_threads, by_warps;  // kind: 0 block of code, 1 load, 2 store
    unsigned of_thread[1024];
};

static TracePlace* trace_places[1 << 16];
static unsigned trace_place_at[1 << 21], trace_n_places, trace_block = ~0u;

NOT_TRACED static void trace_flush()
{
    for (unsigned i = 0; i < trace_n_places; ++i) {
        TracePlace& place = *trace_places[i];
        for (unsigned first = 0; first < 1024; first += 32) {
            unsigned most = 0;
            for (unsigned lane = first; lane < first + 32; ++lane) {
                most = place.of_thread[lane] > most ? place.of_thread[lane] : most;
                place.by_threads += place.of_thread[lane];
                place.of_thread[lane] = 0;
            }
            place.by_warps += most;
        }
    }
}

NOT_TRACED static void trace_count(void* from, uint64_t kind, uint64_t nbytes)
{
    if (blockIdx.x != trace_block) trace_flush();
    trace_block = blockIdx.x;
    const uint64_t address = (uint64_t)from - (uint64_t)&__ehdr_start;
    unsigned& at = trace_place_at[address];
    if (!at) {
        trace_places[trace_n_places++] = new TracePlace{address, kind, nbytes, 0, 0, {}};
        at = trace_n_places;
    }
    ++trace_places[at - 1]->of_thread[threadIdx.x];
}

NOT_TRACED static void trace_access(void* from, uint64_t kind, void* to, uint64_t nbytes)
{
    const uint64_t above = (uint64_t)to - (uint64_t)__builtin_frame_address(0);
    if (above < 4096) return;  // a local variable
    if (to == &threadIdx || to == &blockIdx || to == &blockDim) return;
    trace_count(from, kind, nbytes);
}

extern "C" {
NOT_TRACED void __sanitizer_cov_trace_pc() { trace_count(__builtin_return_address(0), 0, 0); }

#define TRACED(N)                                                                                                      \
    NOT_TRACED void __tsan_read##N(void* at) { trace_access(__builtin_return_address(0), 1, at, N); }                  \
    NOT_TRACED void __tsan_write##N(void* at) { trace_access(__builtin_return_address(0), 2, at, N); }                 \
    NOT_TRACED void __tsan_unaligned_read##N(void* at) { trace_access(__builtin_return_address(0), 1, at, N); }        \
    NOT_TRACED void __tsan_unaligned_write##N(void* at) { trace_access(__builtin_return_address(0), 2, at, N); }
TRACED(1) TRACED(2) TRACED(4) TRACED(8) TRACED(16)
NOT_TRACED void __tsan_read_range(void* at, uint64_t n) { trace_access(__builtin_return_address(0), 1, at, n); }
NOT_TRACED void __tsan_write_range(void* at, uint64_t n) { trace_access(__builtin_return_address(0), 2, at, n); }
NOT_TRACED void __tsan_func_entry(void*) {}
NOT_TRACED void __tsan_func_exit() {}
NOT_TRACED void __tsan_init() {}

// Five words for each place; the number of places if there is no room for them.
NOT_TRACED unsigned trace_result(uint64_t* rows, unsigned room)
{
    trace_flush();
    for (unsigned i = 0; i < trace_n_places && i < room; ++i) {
        const TracePlace& place = *trace_places[i];
        const uint64_t row[] = {place.address, place.kind, place.nbytes, place.by_threads, place.by_warps};
        for (unsigned j = 0; j < 5; ++j) rows[5 * i + j] = row[j];
    }
    return trace_n_places;
}
}
