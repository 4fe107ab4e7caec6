// Functions of CUDA that our kernels call and that only compute.
#pragma once

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

static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline int __ffs(int word) { return __builtin_ffs(word); }
