// The words of CUDA that our kernels use, for a grid whose threads do as they please: see `strict_runtime.cpp`.
#pragma once
#include "cuda_words.h"
#include "ptx_arithmetic.h"
#include "strict_runtime.h"
#include <utility>

#define __global__
#define __device__
#define __constant__
#define __shared__ static __attribute__((section("shim_shared")))
#define SHIM_UNSEEN __attribute__((no_sanitize("thread", "undefined"), noinline))

struct ShimIndex {
    unsigned x;
};
#define threadIdx (ShimIndex{shim_thread_index()})
#define blockIdx (ShimIndex{shim_block_index()})
#define blockDim (ShimIndex{shim_block_dim()})

#define __syncthreads() shim_sync_block()
static inline void __syncwarp(unsigned mask = ~0u) { shim_sync_warp(mask); }
static inline unsigned __ballot_sync(unsigned mask, int predicate) { return shim_vote(mask, predicate); }

template <class T> SHIM_UNSEEN T atomicAdd(T* at, T value)
{
    shim_atomic(at, sizeof(T), __builtin_return_address(0));
    const T before = *at;
    *at += value;
    return before;
}

template <class T> SHIM_UNSEEN T atomicXor(T* at, T value)
{
    shim_atomic(at, sizeof(T), __builtin_return_address(0));
    const T before = *at;
    *at ^= value;
    return before;
}

// ---- entry

template <class... Args> struct Shim {
    static inline void (*kernel)(Args...);
    static inline const unsigned long long* args;

    template <size_t... i> SHIM_UNSEEN static void run(std::index_sequence<i...>) { kernel(args[i]...); }
    SHIM_UNSEEN static void run_thread() { run(std::index_sequence_for<Args...>()); }
};

template <class... Args>
SHIM_UNSEEN int shim_run(void (*kernel)(Args...), ShimGrid grid, unsigned n_args, const unsigned long long* args)
{
    if (n_args != sizeof...(Args)) return -1;
    Shim<Args...>::kernel = kernel;
    Shim<Args...>::args = args;
    grid.run_thread = Shim<Args...>::run_thread;
    return shim_run_grid(grid);
}

#define SHIM_ENTRY(KERNEL)                                                                                             \
    extern "C" int shim_entry(unsigned n_blocks, unsigned n_threads, unsigned n_args, const unsigned long long* args,  \
                              unsigned long long seed, char* message)                                                  \
    {                                                                                                                  \
        return shim_run(KERNEL, ShimGrid{n_blocks, n_threads, seed, message, 0}, n_args, args);                        \
    }
