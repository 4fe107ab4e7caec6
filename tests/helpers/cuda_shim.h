// The words of CUDA that our kernels use, for a C++ compiler: a grid runs as a loop over its blocks and threads.
//
// Threads run one after another, in order, each to its end or to a barrier; one that waits keeps its stack, and the next
// runs on another. A kernel without a barrier may share memory only if the first thread of a block writes all of it, or
// if any thread adds to it and none but the last one reads. Of a warp all threads must end between the same barriers:
// else the process aborts. Races go unnoticed. One grid runs at a time in one library.
#pragma once
#undef _FORTIFY_SOURCE  // it takes a jump from one stack to another for an error
#include <csetjmp>
#include <cstdlib>
#include <ucontext.h>
#include <utility>

#define GPUZARR_HOST_SHIM 1
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

// Byte i of the result is that of `b` over `a` which digit i of `selector` names.
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector)
{
    unsigned result = 0;
    for (int i = 0; i < 32; i += 8) {
        const unsigned digit = selector >> i / 2 & 7;
        result |= ((digit < 4 ? a : b) >> digit % 4 * 8 & 0xff) << i;
    }
    return result;
}

// ---- threads that wait

struct ShimFibre {
    jmp_buf resume;
    bool is_started, waits;
    ShimFibre* next;
    char stack[1 << 16];
};
static ShimFibre *shim_fibres, *shim_fibre;  // all of them, as old as the library; the one that runs
static jmp_buf shim_scheduler;
static void (*shim_thread)();
static unsigned shim_n_started;
static bool shim_ended[1024];

static void shim_leave(bool waits)
{
    shim_fibre->waits = waits;
    if (!_setjmp(shim_fibre->resume)) _longjmp(shim_scheduler, 1);
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
    if (_setjmp(shim_scheduler)) return;
    if (fibre->is_started) _longjmp(fibre->resume, 1);
    fibre->is_started = true;
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = fibre->stack;
    start.uc_stack.ss_size = sizeof fibre->stack;
    makecontext(&start, shim_run_threads, 0);
    setcontext(&start);
}

static void shim_run_block()
{
    shim_n_started = 0;
    ShimFibre** end = &shim_fibres;
    for (; shim_n_started < blockDim.x; end = &(*end)->next) {
        if (!*end) *end = new ShimFibre();
        shim_enter(*end);
    }
    for (bool any_waits = shim_fibres->waits; any_waits;) {
        for (unsigned i = 0; i < blockDim.x; ++i)
            if (shim_ended[i] != shim_ended[i & ~31u]) abort();
        any_waits = false;
        for (ShimFibre* fibre = shim_fibres; fibre != *end; fibre = fibre->next) {
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
