// Swap the bytes of elements into the machine's order, without a branch for each element.

// Selectors of `__byte_perm` that give the two halves of a reordered word of 8 bytes.
struct Order {
    u4 low, high;
};

// Return the order that reverses `swap_nbytes` bytes at a time. For other numbers, such as 0, nothing is swapped.
__device__ inline Order order_of(u4 swap_nbytes)
{
    switch (swap_nbytes) {
    case 2: return Order{0x2301, 0x6745};
    case 4: return Order{0x0123, 0x4567};
    case 8: return Order{0x4567, 0x0123};
    default: return Order{0x3210, 0x7654};
    }
}

// Return a word with its bytes in another order. A word of 1, 2 or 4 bytes has only a lower half.
template <class Word> __device__ inline Word ordered(Word word, const Order& order)
{
    const u4 low = (u4)word, high = sizeof(Word) == 8 ? (u4)((u8)word >> 32) : 0;
    if (sizeof(Word) == 1) return word;
    if (sizeof(Word) < 8) return (Word)__byte_perm(low, high, order.low);
    return (Word)((u8)__byte_perm(low, high, order.high) << 32 | __byte_perm(low, high, order.low));
}

__device__ inline u16 ordered(u16 unit, const Order& order)
{
    return u16{ordered(unit.low, order), ordered(unit.high, order)};
}
