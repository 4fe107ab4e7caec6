// Stacks for the threads of a block, and how one is left for another.
#pragma once
#include <cstddef>

#ifdef __x86_64__
typedef void* ShimStack;

// Leaves the stack that is in use in `from`, and goes on where `to` was left. Far faster than <ucontext.h>, which asks
// the system for its signals each time.
extern "C" void shim_switch(ShimStack* from, ShimStack* to);
asm(".pushsection .text\n"
    ".local shim_switch\n"
    "shim_switch:\n"
    "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp, (%rdi)\n"
    "mov (%rsi), %rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
    "ret\n"
    ".popsection\n");

static void shim_prepare(ShimStack* stack, char* memory, size_t nbytes, void (*run)())
{
    void** const top = (void**)((size_t)(memory + nbytes) & ~(size_t)15);
    top[-2] = (void*)run;
    *stack = top - 8;  // six registers
}
#else
#include <ucontext.h>
typedef ucontext_t ShimStack;

static void shim_switch(ShimStack* from, ShimStack* to) { swapcontext(from, to); }

static void shim_prepare(ShimStack* stack, char* memory, size_t nbytes, void (*run)())
{
    getcontext(stack);
    stack->uc_stack.ss_sp = memory;
    stack->uc_stack.ss_size = nbytes;
    makecontext(stack, run, 0);
}
#endif
