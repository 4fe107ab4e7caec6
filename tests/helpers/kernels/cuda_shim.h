// The words of CUDA that our kernels use, for a C++ compiler: a grid runs as a loop over its blocks and threads.
//
// Threads run one after another, each to its end or to its next barrier, where it keeps its stack and the next one runs on
// another. They start in order; from barrier to barrier the order is reversed, which shows some of what relies on one, and
// `strict_shim.h` shows the rest. Of a warp all threads must end between the same barriers: else the process aborts. One
// grid runs at a time in one library.
#pragma once
#include "cuda_words.h"
#include "host_stacks.h"
#include "ptx_arithmetic.h"
#include <cstdlib>
#include <utility>

#define __global__
#define __device__
#define __constant__
#define __shared__ static

struct ShimIndex {
    unsigned x;
};
static ShimIndex threadIdx, blockIdx, blockDim;

template <class T> T atomicAdd(T* at, T value)
{
    const T before = *at;
    *at += value;
    return before;
}

template <class T> T atomicXor(T* at, T value)
{
    const T before = *at;
    *at ^= value;
    return before;
}

// ---- threads that wait

struct ShimFibre {
    ShimStack stack;
    bool waits;
    char memory[(1 << 16) + 448];  // of stacks a power of two apart, a cache keeps few
};
static ShimFibre *shim_fibres[1024], *shim_fibre;  // all of them, never freed; the one that runs
static ShimStack shim_scheduler;
static void (*shim_thread)();
static unsigned shim_n_started;
static bool shim_ended[1024];

static void shim_leave(bool waits)
{
    shim_fibre->waits = waits;
    shim_switch(&shim_fibre->stack, &shim_scheduler);
}

static void shim_run_threads()
{
    for (;; shim_leave(false))
        while (shim_n_started < blockDim.x) {
            threadIdx.x = shim_n_started++;
            shim_ended[threadIdx.x] = false;
            shim_thread();
            shim_ended[threadIdx.x] = true;
        }
}

// Returns once the fibre waits, or has nothing left to run.
static void shim_enter(ShimFibre* fibre)
{
    shim_fibre = fibre;
    shim_switch(&shim_scheduler, &fibre->stack);
}

static unsigned shim_start_threads()
{
    unsigned n = 0;
    for (shim_n_started = 0; shim_n_started < blockDim.x; shim_enter(shim_fibres[n++])) {
        ShimFibre*& fibre = shim_fibres[n];
        if (fibre) continue;
        fibre = (ShimFibre*)calloc(1, sizeof *fibre);
        shim_prepare(&fibre->stack, fibre->memory, sizeof fibre->memory, shim_run_threads);
    }
    return n;
}

static void shim_check_warps()
{
    for (unsigned i = 0; i < blockDim.x; ++i)
        if (shim_ended[i] != shim_ended[i & ~31u]) abort();
}

static void shim_run_block()
{
    const unsigned n = shim_start_threads();
    bool any_waits = shim_fibres[0]->waits;
    for (unsigned first = n - 1; any_waits; first = n - 1 - first) {
        shim_check_warps();
        any_waits = false;
        for (unsigned i = 0; i < n; ++i) {
            ShimFibre* const fibre = shim_fibres[first ? first - i : i];
            if (fibre->waits) shim_enter(fibre);
            any_waits |= fibre->waits;
        }
    }
}

static void shim_wait()
{
    const unsigned thread = threadIdx.x;
    shim_leave(true);
    threadIdx.x = thread;
}

// Every other thread of the block has come to its next barrier, or its end, before any goes on.
static inline void __syncthreads() { shim_wait(); }
static inline void __syncwarp() { shim_wait(); }

// One bit for each thread of a warp; all of them ask.
static inline unsigned __ballot_sync(unsigned, int predicate)
{
    static bool shim_votes[1024];
    shim_votes[threadIdx.x] = predicate != 0;
    shim_wait();
    const unsigned first = threadIdx.x & ~31u, end = first + 32 < blockDim.x ? first + 32 : blockDim.x;
    unsigned votes = 0;
    for (unsigned i = first; i < end; ++i) votes |= (unsigned)shim_votes[i] << (i - first);
    shim_wait();
    return votes;
}

// ---- entry

template <class... Args> struct Shim {
    static inline void (*kernel)(Args...);
    static inline const unsigned long long* args;

    template <size_t... i> static void run(std::index_sequence<i...>) { kernel(args[i]...); }
    static void run_thread() { run(std::index_sequence_for<Args...>()); }
};

// Returns -1, and runs nothing, if the kernel takes another number of arguments.
template <class... Args>
static int shim_run(void (*kernel)(Args...), unsigned n_blocks, unsigned n_threads, unsigned n_args,
                    const unsigned long long* args)
{
    if (n_args != sizeof...(Args)) return -1;
    blockDim.x = n_threads;
    Shim<Args...>::kernel = kernel;
    Shim<Args...>::args = args;
    shim_thread = Shim<Args...>::run_thread;
    for (blockIdx.x = 0; blockIdx.x < n_blocks; ++blockIdx.x) shim_run_block();
    return 0;
}

#define SHIM_ENTRY(KERNEL)                                                                                             \
    extern "C" int shim_entry(unsigned n_blocks, unsigned n_threads, unsigned n_args, const unsigned long long* args)  \
    {                                                                                                                  \
        return shim_run(KERNEL, n_blocks, n_threads, n_args, args);                                                    \
    }
