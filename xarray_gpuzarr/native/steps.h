/* Steps: operations on elements while they are placed in the output. Byte order, conversion, mask, scale and offset give
 * NumPy's results to the bit. Compile with -ffp-contract=off, so that products are rounded before sums. */

enum kind { CONVERT, MASK, MULTIPLY, DIVIDE, ADD }; /* of a step */
enum { BLOCK_ELEMENTS = 1024, MOST_ITEMSIZE = 16, MOST_MASKED = 4 }; /* elements of a block; longest element; most masked values */

/* One operation on elements that follow each other in memory. */
typedef struct {
    int64_t kind, dtype; /* `enum kind`, and the dtype of the operands */
    int64_t to;          /* for CONVERT: dtype of the results */
    int64_t n_values;    /* for MASK: number of masked values */
    char values[MOST_MASKED * MOST_ITEMSIZE]; /* of `dtype`: masked values, a factor, a divisor or a summand */
} step_t;

/* The operations that convert stored elements to those of the output. */
typedef struct {
    const step_t *steps;
    int64_t n_steps;
    int64_t in_itemsize, out_itemsize;
    int64_t in_swap, out_swap; /* size of the numbers whose bytes are reversed, before the first and after the last step; 0: none */
} steps_t;

/* Positions of elements: `stride` bytes apart, or at the multiples of `stride` that `index` lists. */
typedef struct {
    int64_t stride;
    const int64_t *index;
} positions_t;

/* 16 bytes at any address, which are loaded and stored at once. */
typedef uint64_t wide_t __attribute__((vector_size(16), aligned(1), may_alias));

#define IN_PLACE(of_t, result) { char *dst = at; const char *src = at; EACH(of_t, of_t, result) }
#define HALVES(operation) \
    IN_PLACE(uint16_t, float_to_half(half_to_float(x) operation half_to_float(h)))

/* Carry out a MULTIPLY, DIVIDE or ADD. Complex elements are only added to: their product in NumPy depends on the machine. */
FOR_EACH_MACHINE static void compute(const step_t *step, char *at, int64_t n)
{
    float f; double d; uint16_t h; c8_t c; c16_t z;
    memcpy(&f, step->values, sizeof f), memcpy(&d, step->values, sizeof d), memcpy(&h, step->values, sizeof h);
    memcpy(&c, step->values, sizeof c), memcpy(&z, step->values, sizeof z);
    switch (step->kind * N_DTYPES + step->dtype) {
    case MULTIPLY * N_DTYPES + F2: HALVES(*) break;
    case MULTIPLY * N_DTYPES + F4: IN_PLACE(float, x * f) break;
    case MULTIPLY * N_DTYPES + F8: IN_PLACE(double, x * d) break;
    case DIVIDE * N_DTYPES + F2: HALVES(/) break;
    case DIVIDE * N_DTYPES + F4: IN_PLACE(float, x / f) break;
    case DIVIDE * N_DTYPES + F8: IN_PLACE(double, x / d) break;
    case ADD * N_DTYPES + F2: HALVES(+) break;
    case ADD * N_DTYPES + F4: IN_PLACE(float, x + f) break;
    case ADD * N_DTYPES + F8: IN_PLACE(double, x + d) break;
    case ADD * N_DTYPES + C8: IN_PLACE(c8_t, ((c8_t){x.real + c.real, x.imag + c.imag})) break;
    case ADD * N_DTYPES + C16: IN_PLACE(c16_t, ((c16_t){x.real + z.real, x.imag + z.imag})) break;
    default: break;
    }
}

/* Replace elements that equal `value` by NaN, whose bits are `nan`: compilers may change a NaN in arithmetic. */
#define MASK_REALS(of_t, bits_t, nan)                          \
    for (int64_t i = 0; i < n; i++) {                          \
        of_t x;                                                \
        bits_t bits;                                           \
        memcpy(&x, at + i * (int64_t)sizeof x, sizeof x);      \
        memcpy(&bits, &x, sizeof bits);                        \
        bits = x == value ? (bits_t)(nan) : bits;              \
        memcpy(at + i * (int64_t)sizeof bits, &bits, sizeof bits); \
    }

/* Replace both parts of elements that equal the one at `from` by NaN. */
#define MASK_COMPLEX(of_t, part_t, nan)                        \
    for (int64_t i = 0; i < n; i++) {                          \
        of_t x, value_;                                        \
        part_t part = nan;                                     \
        memcpy(&x, at + i * (int64_t)sizeof x, sizeof x);      \
        memcpy(&value_, from, sizeof value_);                  \
        if (x.real != value_.real || x.imag != value_.imag) continue; \
        memcpy(at + i * (int64_t)sizeof x, &part, sizeof part); \
        memcpy(at + i * (int64_t)sizeof x + sizeof part, &part, sizeof part); \
    }

FOR_EACH_MACHINE static void mask_value(int64_t dtype, const char *from, char *at, int64_t n)
{
    if (dtype == F2) {
        uint16_t half;
        memcpy(&half, from, sizeof half);
        float value = half_to_float(half);
        IN_PLACE(uint16_t, half_to_float(x) == value ? 0x7E00 : x)
    } else if (dtype == F4) {
        float value;
        memcpy(&value, from, sizeof value);
        MASK_REALS(float, uint32_t, 0x7FC00000)
    } else if (dtype == F8) {
        double value;
        memcpy(&value, from, sizeof value);
        MASK_REALS(double, uint64_t, UINT64_C(0x7FF8000000000000))
    } else if (dtype == C8) {
        MASK_COMPLEX(c8_t, uint32_t, 0x7FC00000)
    } else if (dtype == C16) {
        MASK_COMPLEX(c16_t, uint64_t, UINT64_C(0x7FF8000000000000))
    }
}

static void take_step(const step_t *step, char *at, int64_t n)
{
    if (step->kind != MASK) {
        compute(step, at, n);
        return;
    }
    for (int64_t i = 0; i < step->n_values; i++)
        mask_value(step->dtype, step->values + i * itemsizes[step->dtype], at, n);
}

FOR_EACH_MACHINE static void swap_bytes(char *at, int64_t nbytes, int64_t unit)
{
    switch (unit) {
    case 2: { int64_t n = nbytes / 2; IN_PLACE(uint16_t, x << 8 | x >> 8) break; }
    case 4: { int64_t n = nbytes / 4; IN_PLACE(uint32_t, __builtin_bswap32(x)) break; }
    case 8: { int64_t n = nbytes / 8; IN_PLACE(uint64_t, __builtin_bswap64(x)) break; }
    default: break;
    }
}

/* `itemsize` is a constant where possible, so that memcpy becomes an instruction. */
#define MOVE(itemsize, to, from) \
    for (int64_t i = 0; i < n; i++) memcpy(to, from, itemsize)
#define MOVE_ITEMS(itemsize)                                                                                      \
    if (in.index && out.index)                                                                                    \
        MOVE(itemsize, dst + out.index[i] * out.stride, src + in.index[i] * in.stride);                           \
    else if (in.index)                                                                                            \
        MOVE(itemsize, dst + i * out.stride, src + in.index[i] * in.stride);                                      \
    else if (out.index)                                                                                           \
        MOVE(itemsize, dst + out.index[i] * out.stride, src + i * in.stride);                                     \
    else                                                                                                          \
        MOVE(itemsize, dst + i * out.stride, src + i * in.stride)

/* Copy n elements. */
static void copy_elements(char *dst, positions_t out, const char *src, positions_t in, int64_t n, int64_t itemsize)
{
    if (!in.index && !out.index && in.stride == itemsize && out.stride == itemsize) {
        if (n * itemsize == 64) /* some compilers make a call or `rep movs` of a memcpy of this length */
            for (int i = 0; i < 4; i++) ((wide_t *)dst)[i] = ((const wide_t *)src)[i];
        else
            memcpy(dst, src, (size_t)(n * itemsize));
        return;
    }
    if (!in.stride && !in.index && out.stride == itemsize && !out.index && n > 1) { /* repeat one element, in doubling copies */
        memcpy(dst, src, (size_t)itemsize);
        for (int64_t done = 1; done < n; done *= 2)
            memcpy(dst + done * itemsize, dst, (size_t)((n - done < done ? n - done : done) * itemsize));
        return;
    }
    switch (itemsize) {
    case 1: MOVE_ITEMS(1); break;
    case 2: MOVE_ITEMS(2); break;
    case 4: MOVE_ITEMS(4); break;
    case 8: MOVE_ITEMS(8); break;
    default: MOVE_ITEMS((size_t)itemsize);
    }
}

/* Return the positions after the first n. Without an index, the caller moves the address instead. */
static positions_t positions_after(positions_t positions, int64_t n)
{
    return positions.index ? (positions_t){positions.stride, positions.index + n} : positions;
}

/* Take all steps of up to BLOCK_ELEMENTS elements. The output is written only once, since it is seldom in a cache. */
static void take_block(const steps_t *steps, char *dst, positions_t out, const char *src, positions_t in, int64_t n)
{
    char one[BLOCK_ELEMENTS * MOST_ITEMSIZE], other[BLOCK_ELEMENTS * MOST_ITEMSIZE];
    int is_run = !out.index && out.stride == steps->out_itemsize && !steps->out_swap;
    const char *from = src;
    char *room = one;
    /* Elements are brought together first, unless the first step converts contiguous ones from where they are. */
    if (in.index || in.stride != steps->in_itemsize || steps->in_swap || !steps->n_steps || steps->steps->kind != CONVERT) {
        copy_elements(room, (positions_t){steps->in_itemsize, NULL}, src, in, n, steps->in_itemsize);
        swap_bytes(room, n * steps->in_itemsize, steps->in_swap);
        from = room;
    }
    for (int64_t i = 0; i < steps->n_steps; i++) {
        const step_t *step = steps->steps + i;
        if (step->kind != CONVERT) {
            take_step(step, room, n);
            continue;
        }
        int goes_to_output = is_run && i + 1 == steps->n_steps;
        room = from == one ? other : one;
        if (goes_to_output) room = dst;
        converters[step->dtype][step->to](room, from, n);
        from = room;
    }
    swap_bytes(room, n * steps->out_itemsize, steps->out_swap);
    if (room != dst) copy_elements(dst, out, room, (positions_t){steps->out_itemsize, NULL}, n, steps->out_itemsize);
}

/* Take all steps of n elements, in blocks that fit the core's nearest cache, and write the results to the output. */
static void take_steps(const steps_t *steps, char *dst, positions_t out, const char *src, positions_t in, int64_t n)
{
    for (int64_t at = 0; at < n; at += BLOCK_ELEMENTS) {
        int64_t some = n - at < BLOCK_ELEMENTS ? n - at : BLOCK_ELEMENTS;
        take_block(steps, out.index ? dst : dst + at * out.stride, positions_after(out, at),
                   in.index ? src : src + at * in.stride, positions_after(in, at), some);
    }
}

/* The first sum is the element itself: 0 + -0.0 would be 0.0. */
#define SUM_UP(of_t)                                      \
    of_t sum = 0;                                         \
    for (int64_t i = 0; i < n; i++) {                     \
        of_t x;                                           \
        memcpy(&x, at + i * (int64_t)sizeof x, sizeof x); \
        sum = i ? (of_t)(sum + x) : x;                    \
        memcpy(at + i * (int64_t)sizeof x, &sum, sizeof sum); \
    }

#define ACCUMULATE(of_t) { SUM_UP(of_t) break; }

/* From the first NaN on, all sums are that NaN. Compilers differ in which operand a sum of two NaN returns, so these sums are
 * written again. `sum += 0` turns a signalling NaN into a quiet one, as any sum does. */
#define ACCUMULATE_REALS(of_t)                            \
    {                                                     \
        SUM_UP(of_t)                                      \
        int64_t i = sum == sum ? n : 0, found = 0;        \
        for (; i < n; i++) {                              \
            char *to = at + i * (int64_t)sizeof sum;      \
            if (found) memcpy(to, &sum, sizeof sum);      \
            else memcpy(&sum, to, sizeof sum);            \
            if (!found && sum != sum) found = 1, sum += 0; \
        }                                                 \
        break;                                            \
    }

/* Replace each element by the sum of all elements up to it. */
static void accumulate(char *at, int64_t n, int64_t dtype)
{
    switch (dtype) {
    case I1: case U1: ACCUMULATE(uint8_t)
    case I2: case U2: ACCUMULATE(uint16_t)
    case I4: case U4: ACCUMULATE(uint32_t)
    case I8: case U8: ACCUMULATE(uint64_t)
    case F4: ACCUMULATE_REALS(float)
    case F8: ACCUMULATE_REALS(double)
    default: break;
    }
}
