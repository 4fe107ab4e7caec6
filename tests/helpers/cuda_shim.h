// The words of CUDA that our kernels use, for a C++ compiler: a grid runs as a loop over its blocks and threads.
//
// Threads run to their end one after another, in order; no barrier is there to wait at. A kernel may share memory only if
// the first thread of a block writes all of it, or if any thread adds to it and none but the last one reads. One grid
// runs at a time in one library.
#pragma once
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

template <class... Args> struct Shim {
    // Turns an array of arguments into a list of them, one more at each step.
    template <class... Done>
    static void run(void (*kernel)(Args...), const unsigned long long* args, unsigned n_blocks, Done... done)
    {
        if constexpr (sizeof...(Done) < sizeof...(Args)) {
            run(kernel, args, n_blocks, done..., args[sizeof...(Done)]);
        } else {
            for (blockIdx.x = 0; blockIdx.x < n_blocks; ++blockIdx.x)
                for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) kernel(done...);
        }
    }
};

// Returns -1, and runs nothing, if the kernel takes another number of arguments.
template <class... Args>
static int shim_run(void (*kernel)(Args...), unsigned n_blocks, unsigned n_threads, unsigned n_args,
                    const unsigned long long* args)
{
    if (n_args != sizeof...(Args)) return -1;
    blockDim.x = n_threads;
    Shim<Args...>::run(kernel, args, n_blocks);
    return 0;
}

#define SHIM_ENTRY(KERNEL)                                                                                             \
    extern "C" int shim_entry(unsigned n_blocks, unsigned n_threads, unsigned n_args, const unsigned long long* args)  \
    {                                                                                                                  \
        return shim_run(KERNEL, n_blocks, n_threads, n_args, args);                                                    \
    }
