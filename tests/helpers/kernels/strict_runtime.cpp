// Runs a grid as loosely as CUDA allows, and looks at every access to memory.
//
// Blocks, and threads from barrier to barrier, run in an order drawn from a seed. What a block shares is noise when the
// block begins. Kernels are built with -fsanitize=thread and -fsanitize=undefined, whose hooks are here:
// - Two accesses to a byte, one of them a write, must be ordered: by a thread's own course; within a warp by a
//   __syncwarp that names both threads; within a block by a __syncthreads; between blocks by nothing. Votes and atomics
//   do not order anything; atomics need no order among themselves. Writes of the value that is there already are harmless.
// - All threads of a block come to each __syncthreads, all that a mask names to each __syncwarp, none having ended.
// - What C++ leaves undefined (shifts by the width, conversions to integers that do not hold a number, indices behind
//   an array, ...) GPUs and x86 do each in their own way: no kernel may rely on it.
// The first that is wrong ends the grid. What the hooks do not see: accesses that a compiler had no need of.
#include "strict_accesses.h"
#include <algorithm>
#include <numeric>

namespace {

void run_thread()
{
    grid.run_thread();
    settle();
    threads[running].state = State::ended;
    shim_switch(&threads[running].stack, &scheduler);
}

void begin_block()
{
    phase = 0;
    for (char* at = __start_shim_shared; at < __stop_shim_shared; ++at) *at = (char)random_bits();
    for (unsigned i = 0; i < grid.n_threads; ++i) {
        threads[i] = Thread{};
        threads[i].seen[i % n_lanes] = 1;
        shim_prepare(&threads[i].stack, stacks.get() + (size_t)i * stack_nbytes, stack_nbytes, run_thread);
    }
}

bool run_all_that_can()
{
    std::vector<unsigned> order;
    for (unsigned i = 0; i < grid.n_threads; ++i)
        if (threads[i].state == State::runs) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random_bits);
    for (const unsigned i : order) {
        running = i;
        shim_switch(&scheduler, &threads[i].stack);
        if (failed) break;
    }
    return !order.empty();
}

void refuse_barrier(unsigned waiting, unsigned other)
{
    running = waiting;
    const State state = threads[waiting].state;
    const char* const what = state == State::at_block ? "__syncthreads" : state == State::at_warp ? "__syncwarp" : "vote";
    const int n = snprintf(grid.message, 1000, "%s at <0x%lx> where thread %u of block %u waits: thread %u ", what,
                           offset_of(threads[waiting].place), waiting, block - 1, other);
    if (threads[other].state == State::ended) snprintf(grid.message + n, 1000 - n, "has ended");
    else snprintf(grid.message + n, 1000 - n, "waits at <0x%lx>", offset_of(threads[other].place));
    failed = true;
}

// Lets the threads go on that wait in a barrier of the warp with thread `i`, if all are there.
bool release_warp(unsigned i)
{
    const unsigned first = i / n_lanes * n_lanes, n = std::min(n_lanes, grid.n_threads - first), mask = threads[i].mask;
    const State state = threads[i].state;
    unsigned heard[n_lanes] = {}, votes = 0;
    for (unsigned lane = 0; lane < n; ++lane) {
        const Thread& other = threads[first + lane];
        if (!(mask >> lane & 1)) continue;
        if (other.state != state || other.mask != mask) return false;
        votes |= other.votes;
        for (unsigned j = 0; j < n_lanes; ++j) heard[j] = std::max(heard[j], other.seen[j]);
    }
    for (unsigned lane = 0; lane < n; ++lane) {
        if (!(mask >> lane & 1)) continue;
        Thread& other = threads[first + lane];
        other.state = State::runs;
        other.votes = votes;
        if (state == State::at_vote) continue;
        std::copy(heard, heard + n_lanes, other.seen);
        ++other.seen[lane];
    }
    return true;
}

bool waits_in_warp(const Thread& thread) { return thread.state == State::at_warp || thread.state == State::at_vote; }

bool release_warps()
{
    std::vector<unsigned> waiting;
    for (unsigned i = 0; i < grid.n_threads; ++i)
        if (waits_in_warp(threads[i])) waiting.push_back(i);
    std::shuffle(waiting.begin(), waiting.end(), random_bits);
    bool any = false;
    for (const unsigned i : waiting)
        if (waits_in_warp(threads[i]) && (!any || random_bits() % 2)) any |= release_warp(i);
    return any;
}

// Lets all threads go on, if all wait in a __syncthreads; says what is wrong if they never will.
bool release_block()
{
    for (unsigned i = 0; i < grid.n_threads; ++i)
        for (unsigned j = 0; j < grid.n_threads && threads[i].state != State::ended; ++j) {
            const bool is_awaited = threads[i].state == State::at_block ||
                                    (i / n_lanes == j / n_lanes && threads[i].mask >> j % n_lanes & 1);
            if (!is_awaited || (threads[j].state == threads[i].state && threads[j].mask == threads[i].mask)) continue;
            refuse_barrier(i, j);
            return false;
        }
    bool any = false;
    for (Thread& thread : threads) {
        any |= thread.state == State::at_block;
        if (thread.state == State::at_block) thread.state = State::runs;
    }
    ++phase;
    return any;
}

void run_block()
{
    begin_block();
    do run_all_that_can();
    while (!failed && (release_warps() || release_block()));
}

void wait(State state, unsigned mask, const void* place)
{
    settle();
    Thread& thread = threads[running];
    thread.state = state;
    thread.mask = mask;
    thread.place = place;
    const unsigned index = running;
    shim_switch(&thread.stack, &scheduler);
    running = index;
}

}  // namespace

extern "C" int shim_run_grid(ShimGrid asked)
{
    grid = asked;
    random_bits.seed(grid.seed);
    if (!stacks) stacks.reset(new char[(size_t)most_threads * stack_nbytes]);
    threads.resize(grid.n_threads);
    pending.nbytes = 0;
    failed = false;
    std::vector<unsigned> order(grid.n_blocks);
    std::iota(order.begin(), order.end(), 1);
    std::shuffle(order.begin(), order.end(), random_bits);
    for (size_t i = 0; i < order.size() && !failed; ++i) {
        block = order[i];
        run_block();
    }
    pages.clear();
    return failed ? -2 : 0;
}

#define PLACE __builtin_return_address(0)

extern "C" {

unsigned shim_thread_index() { return running; }
unsigned shim_block_index() { return block - 1; }
unsigned shim_block_dim() { return grid.n_threads; }
void shim_sync_block() { wait(State::at_block, 0, PLACE); }
void shim_atomic(void* at, unsigned nbytes, const void* place) { look_at(at, nbytes, true, true, place); }

void shim_sync_warp(unsigned mask)
{
    if (!(mask >> running % n_lanes & 1)) fail("__syncwarp of other threads", PLACE);
    wait(State::at_warp, mask, PLACE);
}

unsigned shim_vote(unsigned mask, int says_so)
{
    if (!(mask >> running % n_lanes & 1)) fail("vote of other threads", PLACE);
    threads[running].votes = says_so ? 1u << running % n_lanes : 0;
    wait(State::at_vote, mask, PLACE);
    return threads[running].votes;
}

// ---- hooks of -fsanitize=thread

void __tsan_init() {}
void __tsan_read_range(void* at, size_t nbytes) { look_at(at, nbytes, false, false, PLACE); }
void __tsan_write_range(void* at, size_t nbytes) { look_at(at, nbytes, true, false, PLACE); }
#define HOOKS(NBYTES)                                                                                                  \
    void __tsan_read##NBYTES(void* at) { look_at(at, NBYTES, false, false, PLACE); }                                   \
    void __tsan_write##NBYTES(void* at) { look_at(at, NBYTES, true, false, PLACE); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

// ---- hooks of -fsanitize=undefined

#define UNDEFINED(HANDLER, WHAT)                                                                                       \
    void __ubsan_handle_##HANDLER##_abort() { fail("undefined: " WHAT, PLACE); }
UNDEFINED(shift_out_of_bounds, "a shift")
UNDEFINED(out_of_bounds, "an index outside of an array")
UNDEFINED(type_mismatch_v1, "an address that is not aligned, or null")
UNDEFINED(float_cast_overflow, "an integer that does not hold a floating number")
UNDEFINED(divrem_overflow, "a division")
UNDEFINED(add_overflow, "an integer sum")
UNDEFINED(sub_overflow, "an integer difference")
UNDEFINED(mul_overflow, "an integer product")
UNDEFINED(negate_overflow, "a negated integer")
UNDEFINED(pointer_overflow, "an address")
UNDEFINED(load_invalid_value, "a value that its type has not")
UNDEFINED(builtin_unreachable, "code that is never reached")
}
