// What a kernel that is built with `strict_shim.h` calls; `strict_runtime.cpp` says what it does.
#pragma once

struct ShimGrid {
    unsigned n_blocks, n_threads;
    unsigned long long seed;
    char* message;  // 1000 bytes, for what is wrong; <0x...> stands for a place in the code
    void (*run_thread)();
};

extern "C" {
int shim_run_grid(ShimGrid grid);  // 0, or -2 with a message
unsigned shim_thread_index();
unsigned shim_block_index();
unsigned shim_block_dim();
void shim_sync_block();
void shim_sync_warp(unsigned mask);
unsigned shim_vote(unsigned mask, int says_so);  // a bit for each thread that says so
void shim_atomic(void* at, unsigned nbytes, const void* place);
}
